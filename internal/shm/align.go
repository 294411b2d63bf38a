package shm

import "unsafe"

// Aligned reports whether b begins at a multiple of toBytes, as direct I/O requires.
func Aligned(b []byte, toBytes int) bool {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b)))%uintptr(toBytes) == 0
}
