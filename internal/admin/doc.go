// Package admin is how operators see and steer a running daemon: a JSON API over HTTP at a unix
// socket in the daemon's state directory, and its client for the commands.
//
// Only root and the daemon's own user may use it: the socket has mode 0600 and lies in a directory
// that is that user's alone, and the server checks who has connected.
//
// A call is a POST to /v1/NAME with one message. The answer is messages, one a line: any number of
// values, and at last one with "end": true or an "error". An answer that ends without either
// was cut off. A message holds its texts exactly, see package exactjson.
//
// What a client can take is bounded: connections, calls at once, the size of a request, and
// the time for which it may leave an answer unread. A call of a client that has gone ends.
package admin
