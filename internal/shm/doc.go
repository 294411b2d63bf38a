// Package shm maps memory that is shared with other processes, accesses its words
// atomically and implements glibc's process-shared semaphores. It is the only package
// that may use unsafe.
//
// The peer is assumed able to write anything at any time and to shrink the object
// while it is mapped. Therefore a byte is read at most once and copied before it is
// checked and used. Ring words are accessed only through Mapping's methods, inside
// Guard, which turns the SIGBUS of a shrunken object into ErrFault. Payload is
// accessed only by system calls, which return EFAULT instead of faulting.
package shm
