// Package doctor finds out why KV cache storage fails or is slow on a host. Each
// Finding says what was found, what is needed, and the line that fixes it.
//
// Facts come from package host and from probes. A probe makes the calls that may hang
// with a disk or a FUSE daemon. It runs in its own process, which is left behind if
// even SIGKILL cannot end it (runprobe.go). The judge functions turn facts into
// findings and read nothing themselves.
package doctor
