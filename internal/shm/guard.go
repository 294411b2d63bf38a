package shm

import (
	"errors"
	"runtime"
	"runtime/debug"
)

// ErrFault reports that a memory access faulted, because the object was shrunk or its
// disk failed.
var ErrFault = errors.New("access to shared memory faulted: its owner has shrunk the object")

// Guard runs fn, in which Mapping's word and copy methods may be used, and turns a
// fault on the mapped memory into ErrFault. A fault ends fn at that access and undoes
// nothing, so fn's own state must be consistent at every access. Other panics propagate.
func Guard(fn func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		switch r := recover().(type) {
		case nil:
		case interface {
			runtime.Error
			Addr() uintptr
		}:
			err = ErrFault
		default:
			panic(r)
		}
	}()
	fn()
	return nil
}
