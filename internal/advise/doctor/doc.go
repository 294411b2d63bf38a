// Package doctor finds out why storage for KV cache does not work on a host, or
// not fast, and says what to do: what was found, what is needed, and the line
// that fixes it.
//
// Facts come from package host and from probes. A probe is whatever may hang
// with a disk or a FUSE daemon, which the kernel then may be unable to kill: it
// runs in a process of its own that is left behind in the end (ask.go). The
// judgements are functions of facts.
package doctor
