// Package shm is the one room where unsafe compiles: mappings shared with
// strangers, atomics on their words, and glibc's process-shared semaphores.
//
// The other process is assumed able to write anything at any time and to shrink
// the object under us. Hence: a byte is read at most once and copied before it
// is believed; ring words are touched only through Mapping's methods, inside
// Guard, which turns the SIGBUS of a shrunken object into ErrFault; payload is
// touched only by system calls, which report EFAULT instead of faulting.
package shm
