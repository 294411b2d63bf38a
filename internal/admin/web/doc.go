// Package web is what operators and their tools see of a daemon over HTTP: metrics, health, readiness
// and profiles, at one address.
//
// Whoever may connect to a loopback address may read all of it where no token is set: nothing that gives rights, but names of
// other users' directories and programs, see docs/security.md. At any other address a client needs a token and TLS, but for
// /healthz and /readyz, which probes ask.
//
// Nothing here holds up the daemon's work: connections, requests and the time for which a client may leave an
// answer unread are bounded, and what is asked for is read from counters.
package web
