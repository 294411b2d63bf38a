// Package doctor finds out why KV cache storage does not work, or is slow, on a
// host. Each finding says what was found, what is needed, and the line that fixes
// it.
//
// Facts come from package host and from probes. A probe does what may hang with a
// disk or a FUSE daemon. It runs in its own process, which is left behind if even
// SIGKILL cannot end it (runprobe.go). The judge functions turn facts into findings
// and read nothing themselves.
package doctor
