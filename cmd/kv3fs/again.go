package main

import "sync/atomic"

// again are the requests to stop after the first one. They end the process at once, unless a command has to end others before.
type again struct {
	wanted atomic.Bool
	asked  chan struct{}
}

func newAgain() *again { return &again{asked: make(chan struct{}, 1)} }

// follow returns what receives a value for a further request from now on; several that nobody has received count as one.
func (a *again) follow() <-chan struct{} {
	a.wanted.Store(true)
	return a.asked
}

// take reports whether the command follows them, and tells it.
func (a *again) take() bool {
	if !a.wanted.Load() {
		return false
	}
	select {
	case a.asked <- struct{}{}:
	default:
	}
	return true
}
