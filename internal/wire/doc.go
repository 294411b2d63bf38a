// Package wire encodes and decodes the byte formats of the 3FS client interface: ring
// memory, link names, ioctl arguments and virtual inode numbers. It is pure: bytes and
// names in, values out, without system calls, shared memory or state. Section numbers
// in comments refer to docs/spec/usrbio.md.
//
// All input comes from an untrusted peer. A decoder never panics, never allocates by a
// length in its input, and reports bad input as the syscall.Errno that the client must
// see.
package wire
