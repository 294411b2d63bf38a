// Package wire holds the byte-level facts of the 3FS client interface: ring
// memory, link names, ioctl arguments, virtual inode numbers. It is pure: bytes
// and names in, values out; no system call, no shared memory, no state. Section
// numbers in comments refer to docs/spec/usrbio.md.
//
// Everything decoded here was written by a stranger. A decoder never panics,
// never allocates by a foreign length and reports bad input as a syscall.Errno,
// the very number the client must see.
package wire
