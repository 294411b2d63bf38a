package main

import (
	"os"
	"runtime/debug"
)

// gcPercent is the GOGC of a process that serves pages. A request for 512 keys leaves
// some 20 KiB of garbage. At Go's default of 100 and with a small index, the collector
// runs once in 40 requests, which takes a tenth to a fifth of the processor time; at
// 200 it runs once in 130, and memory stays below three times what is in use.
const gcPercent = 200

// tuneCollector sets gcPercent, unless the user has set GOGC. GOMEMLIMIT needs nothing:
// the Go runtime reads it.
func tuneCollector() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
}
