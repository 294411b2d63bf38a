// Package limits attacks a real daemon as ordinary users, one resource at a time, and tests
// that others are served meanwhile. It knows nothing of the daemon's inside.
//
// The programs that attackers run are in a table by file; package hostile runs them.
// internal/test/hogs runs many attacks at once.
package limits
