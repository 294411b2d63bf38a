// Package web is what operators and their tools see of a daemon over HTTP: metrics, health, readiness
// and profiles, at one address.
//
// Whoever may connect to a loopback address may read all of it, so it has no secrets. At any other address a client
// needs a token and TLS, but for /healthz and /readyz, which probes ask.
//
// Nothing here holds up the daemon's work: connections, requests and the time for which a client may leave an
// answer unread are bounded, and what is asked for is read from counters.
package web
