package shm

import "unsafe"

// OffsetIn returns where in outer's memory inner begins; ok is false unless all of
// inner lies in it.
func OffsetIn(outer, inner []byte) (offset int64, ok bool) {
	first := uintptr(unsafe.Pointer(unsafe.SliceData(outer)))
	at := uintptr(unsafe.Pointer(unsafe.SliceData(inner)))
	if len(inner) == 0 || at < first || at-first > uintptr(len(outer)) || uintptr(len(inner)) > uintptr(len(outer))-(at-first) {
		return 0, false
	}
	return int64(at - first), true
}
