package posix

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// While writes fill the queue and none of those under way returns, reads are served, and a
// write that completes something. The caller of the writes waits for room, and the callers
// of reads do not wait with it.
func TestReadsOvertakeWrites(t *testing.T) {
	dir, hung := mountHanging(t)
	const streams, depth = 4, 8
	e := New(Options{Streams: streams, WaitingQueueDepth: depth})
	slow := open(t, e, filepath.Join(dir, "f"), os.O_RDWR)
	fine := open(t, e, filepath.Join(t.TempDir(), "f"), os.O_CREATE|os.O_RDWR)
	const writes = 4 * (streams + depth)
	written := make(chan error, writes)
	ops := make([]transfer.Op, writes)
	for i := range ops {
		ops[i] = transfer.Op{File: slow, Offset: int64(i) * 4096, Buf: aligned(t, 4096), Write: true, Done: func(_ int, err error) { written <- err }}
	}
	dumped := make(chan struct{})
	go func() {
		defer close(dumped)
		e.Do(t.Context(), ops)
	}()
	<-hung.asked

	move := func(op transfer.Op) {
		t.Helper()
		done := make(chan result, 1)
		op.Done = func(n int, err error) { done <- result{n, err} }
		e.Do(t.Context(), []transfer.Op{op})
		select {
		case r := <-done:
			if r != (result{len(op.Buf), nil}) {
				t.Errorf("write %v: %v", op.Write, r)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("write %v: it waits for writes that do not return", op.Write)
		}
	}
	want := bytes.Repeat([]byte("k"), 4096)
	move(transfer.Op{File: fine, Buf: want, Write: true, Ahead: true})
	for range 3 * (streams + depth) {
		got := make([]byte, len(want))
		move(transfer.Op{File: fine, Buf: got})
		if !bytes.Equal(got, want) {
			t.Fatal("other bytes were read")
		}
	}
	if len(written) > 0 {
		t.Errorf("%d writes have ended", len(written))
	}
	hung.release()
	<-dumped
	for range writes {
		if err := <-written; err != nil {
			t.Error(err)
		}
	}
	for _, f := range []transfer.File{slow, fine} {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
}

// The caller of a move that was abandoned learns when the storage has finished with it.
func TestLate(t *testing.T) {
	dir, hung := mountHanging(t)
	e := New(Options{Timeout: 10 * time.Millisecond})
	f := open(t, e, filepath.Join(dir, "f"), os.O_RDWR)
	ended, late := make(chan error, 1), make(chan struct{})
	e.Do(context.Background(), []transfer.Op{{
		File: f, Buf: aligned(t, 4096), Write: true,
		Done: func(_ int, err error) { ended <- err },
		Late: func() { close(late) },
	}})
	if err := <-ended; !errors.Is(err, kv.ErrAbandoned) {
		t.Fatal(err)
	}
	select {
	case <-late:
		t.Error("it was late before it returned")
	default:
	}
	hung.release()
	<-late
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	<-hung.closed
	_ = e.Close() // which may be quicker than the goroutine that came back
}
