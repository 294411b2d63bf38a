// Package capacity tests that a real daemon keeps its data directory within --capacity while
// engines write at full speed, and serves no wrong byte meanwhile.
package capacity
