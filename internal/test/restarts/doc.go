// Package restarts holds what clients of a daemon see, on rings and on the mount, while it is replaced again and again: killed at
// random and at each step between taking a request and telling its client, stopped and started, or handed over.
package restarts
