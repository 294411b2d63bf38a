// Package forward lets every host of a cluster answer for its leader: a host that does not lead
// sends its clients' requests to the one that does, over connections that stay open, and the
// leader takes them at a listener of its own, from hosts that show a token or a certificate.
//
// The messages are HTTP/1.1, a request on a connection at a time. A request has the method, the path and
// the body of the client's, and in its head who sends it (headerHost), for which client of that host
// (headerClient), and the namespace that the client's listener is bound to. Both sides name the
// version of this protocol in headerProtocol, so that neither takes a proxy's answer, or another
// program's, for the other's; and their cluster and themselves, a request also the host that it is for: an
// address may be another host's by now, even one of another cluster that has the same token.
//
// A request goes to one host and no further: a host that takes it and does not lead says so (421).
// The next leader gets it then, or if the leader changes while it is under way and it may be
// executed twice; once.
package forward
