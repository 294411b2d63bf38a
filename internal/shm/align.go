package shm

import "unsafe"

// Aligned tells whether b begins at a multiple of so many bytes, as direct I/O
// wants it.
func Aligned(b []byte, toBytes int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(toBytes) == 0
}
