package posix

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

func open(t *testing.T, e transfer.Engine, path string, flags int) transfer.File {
	t.Helper()
	raw, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f, err := e.Open(raw)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func start(t *testing.T, o Options) transfer.Engine {
	t.Helper()
	e := New(o)
	t.Cleanup(func() {
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	})
	return e
}

// aligned returns memory that begins at a page boundary.
func aligned(t *testing.T, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

type result struct {
	n   int
	err error
}

// do does all ops and waits for them.
func do(ctx context.Context, e transfer.Engine, ops ...transfer.Op) []result {
	results := make([]result, len(ops))
	var wg sync.WaitGroup
	wg.Add(len(ops))
	for i := range ops {
		ops[i].Done = func(n int, err error) {
			results[i] = result{n, err}
			wg.Done()
		}
	}
	e.Do(ctx, ops)
	wg.Wait()
	return results
}

// With any alignment of buffer, offset and length, directly or not, the bytes that were
// written are read and passed to Piece, and the file has the right length.
func TestEveryAlignment(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 3<<20)
	for i := range noise {
		noise[i] = byte(rng.Uint32())
	}
	for name, direct := range map[string]bool{"buffered": false, "direct": true} {
		t.Run(name, func(t *testing.T) {
			e := start(t, Options{Streams: 2, DirectIO: direct})
			memory := aligned(t, 4<<20)
			for _, offset := range []int64{0, 4096, 1000, 1 << 20} {
				for _, size := range []int{1, 4095, 4096, 8192, 8193, 1<<20 + 4096, 2<<20 + 17} {
					for _, shift := range []int{0, 1, 512} {
						path := filepath.Join(t.TempDir(), "f")
						f := open(t, e, path, os.O_RDWR|os.O_CREATE)
						buf := memory[shift:][:size]
						copy(buf, noise[rng.IntN(1000):])
						want := bytes.Clone(buf)
						var shown []byte
						show := func(piece []byte) { shown = append(shown, piece...) }
						if r := do(t.Context(), e, transfer.Op{File: f, Offset: offset, Buf: buf, Write: true, Piece: show}); !bytes.Equal(shown, want) || r[0] != (result{size, nil}) {
							t.Fatalf("write of %d at %d, buffer at %d: %v", size, offset, shift, r)
						}
						if got, err := f.Size(); err != nil || got != offset+int64(size) {
							t.Fatalf("%d at %d: the file has %d bytes, %v", size, offset, got, err)
						}
						onDisk, err := os.ReadFile(path)
						if err != nil || !bytes.Equal(onDisk[offset:], want) {
							t.Fatalf("write of %d at %d, buffer at %d: other bytes in the file, %v", size, offset, shift, err)
						}
						clear(buf)
						shown = nil
						if r := do(t.Context(), e, transfer.Op{File: f, Offset: offset, Buf: buf, Piece: show}); r[0] != (result{size, nil}) || !bytes.Equal(buf, want) || !bytes.Equal(shown, want) {
							t.Fatalf("read of %d at %d, buffer at %d: %v, equal %v", size, offset, shift, r, bytes.Equal(buf, want))
						}
						// Beyond the end there is nothing, and that is no error.
						long := memory[shift:][:size+5000]
						shown = nil
						if r := do(t.Context(), e, transfer.Op{File: f, Offset: offset, Buf: long, Piece: show}); !bytes.Equal(shown, want) || r[0] != (result{size, nil}) || !bytes.Equal(long[:size], want) {
							t.Fatalf("read of %d more than %d at %d, buffer at %d: %v", 5000, size, offset, shift, r)
						}
						if err := f.Close(); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
		})
	}
}

// Direct I/O is used on a file system that has it, and the same options work on one that
// does not.
func TestDirectWhereThereIs(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	probe, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR|syscall.O_DIRECT, 0o600)
	possible := err == nil
	if possible {
		probe.Close()
	}
	e := start(t, Options{DirectIO: true})
	f := open(t, e, path, os.O_CREATE|os.O_RDWR).(*file)
	defer f.Close()
	if f.direct != possible {
		t.Errorf("direct I/O is possible: %v; used: %v", possible, f.direct)
	}
	fd, err := unix.MemfdCreate("none", 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFL, unix.O_DIRECT); err == nil {
		t.Log("this kernel's tmpfs has direct I/O")
	}
	memory, err := e.Open(os.NewFile(uintptr(fd), "memory"))
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	if r := do(t.Context(), e, transfer.Op{File: memory, Buf: make([]byte, 8192), Write: true}); r[0] != (result{8192, nil}) {
		t.Error(r)
	}
}

func TestStorageErrors(t *testing.T) {
	e := start(t, Options{Streams: 1})
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	f := open(t, e, path, os.O_RDONLY)
	if r := do(t.Context(), e, transfer.Op{File: f, Buf: []byte("y"), Write: true}); !errors.Is(r[0].err, syscall.EBADF) {
		t.Error(r)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if r := do(t.Context(), e, transfer.Op{File: f, Buf: []byte("y")}); !errors.Is(r[0].err, os.ErrClosed) {
		t.Error(r)
	}
	if _, err := f.Size(); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if f.Close() == nil {
		t.Error("closed twice")
	}
}

func TestClosed(t *testing.T) {
	e := New(Options{})
	f := open(t, e, filepath.Join(t.TempDir(), "f"), os.O_CREATE|os.O_RDWR)
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if r := do(t.Context(), e, transfer.Op{File: f, Buf: []byte("y")}); r[0].err != kv.ErrClosed {
		t.Error(r)
	}
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	if _, err := e.Open(null); !errors.Is(err, kv.ErrClosed) {
		t.Error(err)
	}
}

// A mount stops answering: moves that have begun are abandoned after the engine's timeout;
// those that have not get ErrTimeout, are cancelled, or find no room; another file system is
// served meanwhile; and the error of Close says that calls have never returned.
func TestHangingMount(t *testing.T) {
	dir, hung := mountHanging(t)
	e := New(Options{Streams: 2, WaitingQueueDepth: 2, Timeout: time.Second})
	stuck := open(t, e, filepath.Join(dir, "f"), os.O_RDWR)
	fine := open(t, e, filepath.Join(t.TempDir(), "f"), os.O_CREATE|os.O_RDWR)
	buf := func() []byte { return aligned(t, 4096) }

	type settled struct {
		name string
		err  error
	}
	results := make(chan settled, 16)
	op := func(name string, f transfer.File, write bool) []transfer.Op {
		return []transfer.Op{{File: f, Buf: buf(), Write: write, Done: func(_ int, err error) { results <- settled{name, err} }}}
	}
	next := func(want string, is ...error) {
		t.Helper()
		select {
		case got := <-results:
			for _, is := range is {
				if !errors.Is(got.err, is) {
					t.Errorf("%s: %v; want %v", got.name, got.err, is)
				}
			}
			if got.name != want || len(is) == 0 && got.err != nil {
				t.Errorf("%s was settled with %v; expected %s", got.name, got.err, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s is never settled", want)
		}
	}

	e.Do(t.Context(), op("read", stuck, false))
	<-hung.asked
	e.Do(t.Context(), op("beside it", fine, true))
	next("beside it")
	next("read", kv.ErrAbandoned, kv.ErrTimeout)

	ctx, cancel := context.WithCancel(t.Context())
	e.Do(t.Context(), op("write", stuck, true))
	<-hung.asked
	e.Do(t.Context(), op("behind", fine, true))
	e.Do(t.Context(), op("behind", fine, true))
	cancel()
	e.Do(ctx, op("cancelled", fine, true))
	next("cancelled", context.Canceled)
	for range 3 {
		got := <-results
		if want := map[string]error{"write": kv.ErrAbandoned, "behind": kv.ErrTimeout}[got.name]; !errors.Is(got.err, want) || want == nil {
			t.Errorf("%s: %v", got.name, got.err)
		}
	}
	e.Do(t.Context(), op("nobody left", fine, true))
	next("nobody left", kv.ErrTimeout)

	// The file may be closed: its descriptor stays open until the call has returned.
	if err := stuck.Close(); err != nil {
		t.Error(err)
	}
	if err := fine.Close(); err != nil {
		t.Error(err)
	}
	if err := e.Close(); err == nil {
		t.Error("Close returned no error although two calls hang")
	}
	hung.release()
	<-hung.closed
}

// Do waits for room, but no longer than its context and the engine allow.
func TestFullQueue(t *testing.T) {
	dir, hung := mountHanging(t)
	e := New(Options{Streams: 2, WaitingQueueDepth: 1, Timeout: 2 * time.Second})
	stuck := open(t, e, filepath.Join(dir, "f"), os.O_RDWR)
	results := make(chan error, 16)
	ops := make([]transfer.Op, 3)
	for i := range ops {
		ops[i] = transfer.Op{File: stuck, Buf: aligned(t, 4096), Done: func(_ int, err error) { results <- err }}
	}
	e.Do(t.Context(), ops)
	ctx, cancel := context.WithCancel(t.Context())
	waiting := make(chan struct{})
	go func() {
		defer close(waiting)
		e.Do(ctx, ops[:1])
	}()
	cancel()
	<-waiting
	if err := <-results; !errors.Is(err, context.Canceled) {
		t.Errorf("no room: %v", err)
	}
	for range 3 {
		if err := <-results; !errors.Is(err, kv.ErrTimeout) {
			t.Error(err)
		}
	}
	hung.release()
	if err := stuck.Close(); err != nil {
		t.Error(err)
	}
	<-hung.closed // so nothing hangs any more
	_ = e.Close() // which may be quicker than the goroutines that came back
}
