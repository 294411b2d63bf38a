package shm

import (
	"errors"
	"runtime"
	"runtime/debug"
)

// ErrFault says that the object shrank, or its disk failed, under a memory access.
var ErrFault = errors.New("shared memory faulted: the object was shrunk by its owner")

// Guard runs fn, in which Mapping's word and copy methods may be used, and turns
// a fault on the mapped memory into ErrFault. fn's own state must make sense at
// every access: what it had done before the fault stays done. Other panics pass.
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
