package fuseserver

import (
	"errors"
	"os"
	"reflect"
	"sync"

	"github.com/hanwen/go-fuse/v2/fuse"
)

// The kernel copies a request into the buffer of whoever reads it. If a page of that buffer is not there yet and the reader is being killed,
// the kernel does not wait for the page: it ends the request with EIO, which no successor can mend. So that a kill -9 fails no client's
// call, all pages of the buffers are there before go-fuse reads into them. Answers need no such care: they were just written.
//
// go-fuse has no option for that, so this reaches for the pool that it takes its buffers from. An error says that it has none such any more.
func presentBuffers(server *fuse.Server) error {
	field := reflect.ValueOf(server).Elem().FieldByName("readPool")
	if !field.IsValid() || field.Type() != reflect.TypeFor[sync.Pool]() {
		return errors.New("go-fuse keeps its buffers elsewhere: a call that arrives while the daemon is killed may fail with EIO")
	}
	pool := reflect.NewAt(field.Type(), field.Addr().UnsafePointer()).Interface().(*sync.Pool)
	fresh := pool.New
	pool.New = nil
	for pool.Get() != nil { // the kernel's first request was read into it
	}
	pool.New = func() any {
		b := fresh()
		if b, ok := b.([]byte); ok {
			touch(b[:cap(b)])
		}
		return b
	}
	return nil
}

// touch has the kernel give b, which is zero, all of its pages.
func touch(b []byte) {
	for at := 0; at < len(b); at += os.Getpagesize() {
		b[at] = 0
	}
	b[len(b)-1] = 0
}
