package ringio_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/kvstore/memory"
	"github.com/kv3fs/kv3fs/usrbio"
)

func TestEverySizeArrives(t *testing.T) {
	d := serve(t)
	// Pieces of 64 KiB, 16 for each direction: most of what follows is larger.
	e := engine(t, d, ringio.Options{Entries: 4, BufferBytes: 2 << 20})
	mem := shared(t, e, 8<<20)
	for i, size := range []int{1, 511, 4096, 64<<10 - 1, 64 << 10, 64<<10 + 1, 1 << 20, 3<<20 + 12345} {
		for _, place := range []struct {
			name string
			buf  []byte
		}{
			{"in place", mem.Bytes()[100 : 100+size]},
			{"staged", make([]byte, size)},
		} {
			t.Run(fmt.Sprintf("%d bytes %s", size, place.name), func(t *testing.T) {
				name := fmt.Sprintf("%d-%s", size, place.name)
				f := create(t, e, d, name)
				offset := int64(i * 777)
				content := workload.PatternOf(uint64(size))
				content.Fill(place.buf)
				if n, err := do(t, e, transfer.Op{File: f, Offset: offset, Buf: place.buf, Write: true}); n != size || err != nil {
					t.Fatalf("wrote %d: %v", n, err)
				}
				stored, err := os.ReadFile(filepath.Join(d.Data, name))
				if err != nil || int64(len(stored)) != offset+int64(size) {
					t.Fatalf("%d bytes are stored: %v", len(stored), err)
				}
				if wrong, first := content.Check(stored[offset:]); wrong != 0 {
					t.Fatalf("%d wrong bytes are stored, the first at %d", wrong, first)
				}
				if got, err := f.Size(); got != offset+int64(size) || err != nil {
					t.Errorf("the size is %d: %v", got, err)
				}
				clear(place.buf)
				if n, err := do(t, e, transfer.Op{File: f, Offset: offset, Buf: place.buf}); n != size || err != nil {
					t.Fatalf("read %d: %v", n, err)
				}
				if wrong, first := content.Check(place.buf); wrong != 0 {
					t.Errorf("%d wrong bytes read, the first at %d", wrong, first)
				}
			})
		}
	}
}

func TestReadsEndWhereTheFileEnds(t *testing.T) {
	d := serve(t)
	e := engine(t, d, ringio.Options{BufferBytes: 1 << 20}) // pieces of 32 KiB
	mem := shared(t, e, 1<<20)
	for _, size := range []int{0, 1, 32 << 10, 100_000} {
		name := fmt.Sprint(size)
		if err := os.WriteFile(filepath.Join(d.Data, name), make([]byte, size), 0o644); err != nil {
			t.Fatal(err)
		}
		f := open(t, e, d, name)
		for _, offset := range []int{0, 1, size, size + 5} {
			want := max(0, size-offset)
			for _, buf := range [][]byte{make([]byte, 300_000), mem.Bytes()[:300_000]} {
				if n, err := do(t, e, transfer.Op{File: f, Offset: int64(offset), Buf: buf}); n != want || err != nil {
					t.Errorf("at %d of %d bytes: %d read, want %d: %v", offset, size, n, want, err)
				}
			}
		}
	}
	if n, err := do(t, e, transfer.Op{File: open(t, e, d, "1"), Buf: nil}); n != 0 || err != nil {
		t.Errorf("nothing asked for: %d, %v", n, err)
	}
}

// Many goroutines with every kind of buffer share a queue that is always full.
func TestManyAtOnce(t *testing.T) {
	d := serve(t)
	e := engine(t, d, ringio.Options{Entries: 8, BufferBytes: 1 << 20, WaitingQueueDepth: 4})
	const (
		workers   = 12
		rounds    = 60
		most      = 200 << 10
		partBytes = 4 * most
	)
	mem := shared(t, e, workers*partBytes)
	files := make([]transfer.File, 5)
	for i := range files {
		files[i] = create(t, e, d, fmt.Sprint(i))
	}
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(1, uint64(w)))
			own := mem.Bytes()[w*partBytes:][:partBytes]
			for round := range rounds {
				var writes, reads []transfer.Op
				var contents []workload.Pattern
				for i := range 4 {
					buf := own[i*most:][:1+random.IntN(most)]
					if random.IntN(2) == 0 {
						buf = make([]byte, len(buf))
					}
					content := workload.PatternOf(uint64(w), uint64(round), uint64(i))
					content.Fill(buf)
					op := transfer.Op{File: files[random.IntN(len(files))], Offset: int64(w*partBytes + i*most), Buf: buf}
					reads, contents = append(reads, op), append(contents, content)
					op.Write = true
					writes = append(writes, op)
				}
				all(t, e, writes)
				for _, op := range reads {
					clear(op.Buf)
				}
				all(t, e, reads)
				for i, op := range reads {
					if wrong, first := contents[i].Check(op.Buf); wrong != 0 {
						t.Errorf("worker %d, round %d: %d wrong bytes of %d, the first at %d", w, round, wrong, len(op.Buf), first)
						return
					}
				}
			}
		})
	}
	wg.Wait()
}

func TestErrorsNameTheFile(t *testing.T) {
	d := serve(t)
	e := engine(t, d, ringio.Options{})
	if err := os.WriteFile(filepath.Join(d.Data, "read-only"), []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	f := open(t, e, d, "read-only")
	var path *os.PathError
	if _, err := do(t, e, transfer.Op{File: f, Buf: make([]byte, 10), Write: true}); !errors.Is(err, syscall.EACCES) || !errors.As(err, &path) || filepath.Base(path.Path) != "read-only" || path.Op != "write" {
		t.Errorf("%v", err)
	}
	if _, err := do(t, e, transfer.Op{File: f, Offset: -1, Buf: make([]byte, 10)}); !errors.Is(err, syscall.EINVAL) || !errors.As(err, &path) || path.Op != "read" {
		t.Errorf("%v", err)
	}
	if _, err := do(t, e, transfer.Op{File: foreignFile{}, Buf: make([]byte, 10)}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("a file of another engine: %v", err)
	}
	elsewhere, err := os.Create(filepath.Join(t.TempDir(), "elsewhere"))
	if err != nil {
		t.Fatal(err)
	}
	defer elsewhere.Close()
	if _, err := e.Open(elsewhere); !errors.Is(err, usrbio.ErrNotMounted) || errors.Is(err, ringio.ErrStale) {
		t.Errorf("%v", err)
	}
	other := serve(t)
	foreign, err := os.Create(filepath.Join(other.Mount, "foreign"))
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	if _, err := e.Open(foreign); !errors.Is(err, syscall.EXDEV) || errors.Is(err, ringio.ErrStale) {
		t.Errorf("a file of another mount: %v", err)
	}
	if n, err := do(t, e, transfer.Op{File: f, Buf: make([]byte, 10)}); n != 1 || err != nil {
		t.Errorf("a move after that: %d, %v", n, err)
	}
}

type foreignFile struct{}

func (foreignFile) Size() (int64, error) { return 0, nil }
func (foreignFile) Close() error         { return nil }

func TestOptionsThatCannotBe(t *testing.T) {
	for _, o := range []ringio.Options{
		{}, {Mount: "/", Streams: -1}, {Mount: "/", Entries: 1 << 20}, {Mount: "/", BufferBytes: 1},
		{Mount: "/", WaitingQueueDepth: -1}, {Mount: "/", Timeout: 1},
	} {
		if e, err := ringio.New(o); err == nil {
			t.Errorf("%+v was accepted", o)
			e.Close()
		}
	}
	if _, err := ringio.New(ringio.Options{Mount: t.TempDir()}); !errors.Is(err, usrbio.ErrNotMounted) {
		t.Errorf("%v", err)
	}
}

func TestMemoryThatIsNot(t *testing.T) {
	d := serve(t)
	e := engine(t, d, ringio.Options{})
	m, err := memory.New(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if err := e.Register(m.Name(), make([]byte, 8192)); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("more than the object has: %v", err)
	}
	if err := e.Register("kv3fs-mem-nonesuch", make([]byte, 1)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%v", err)
	}
	for range 2 { // the second time changes nothing
		if err := e.Register(m.Name(), m.Bytes()); err != nil {
			t.Error(err)
		}
	}
}

// A daemon is killed while moves are under way, and another one takes its place.
func TestKilledDaemon(t *testing.T) {
	d := serve(t)
	const size, workers = 1 << 20, 8
	content := workload.PatternOf(1)
	block := make([]byte, 8*size)
	content.Fill(block)
	if err := os.WriteFile(filepath.Join(d.Data, "block"), block, 0o644); err != nil {
		t.Fatal(err)
	}
	e := engine(t, d, ringio.Options{Timeout: time.Minute})
	mem := shared(t, e, workers*len(block))
	old := open(t, e, d, "block")

	var rounds atomic.Int64
	enough := make(chan struct{})
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			buf := mem.Bytes()[w*len(block):][:len(block)]
			if w%2 == 0 {
				buf = make([]byte, len(block))
			}
			for {
				clear(buf)
				n, err := do(t, e, transfer.Op{File: old, Buf: buf})
				switch {
				case err != nil:
					if !errors.Is(err, ringio.ErrStale) || !errors.Is(err, syscall.ENOTCONN) {
						t.Errorf("in flight: %v", err)
					}
					return
				case n != len(buf):
					t.Errorf("%d bytes read", n)
					return
				}
				if wrong, _ := content.Check(buf); wrong != 0 {
					t.Errorf("%d wrong bytes", wrong)
				}
				if rounds.Add(1) == 3*workers {
					close(enough)
				}
			}
		})
	}
	<-enough
	d.Kill()
	wg.Wait()
	if _, err := do(t, e, transfer.Op{File: old, Buf: make([]byte, 10)}); !errors.Is(err, ringio.ErrStale) {
		t.Errorf("afterwards: %v", err)
	}
	if err := old.Close(); err != nil {
		t.Errorf("closing a stale file: %v", err)
	}

	d.Start(t)
	f := open(t, e, d, "block")
	for _, buf := range [][]byte{mem.Bytes()[:len(block)], make([]byte, len(block))} {
		clear(buf)
		if n, err := do(t, e, transfer.Op{File: f, Buf: buf}); n != len(buf) || err != nil {
			t.Fatalf("from the new daemon: %d, %v", n, err)
		}
		if wrong, _ := content.Check(buf); wrong != 0 {
			t.Errorf("from the new daemon: %d wrong bytes", wrong)
		}
	}
}

// Memory whose name was removed, or given to another object, is still used, through a copy,
// once there is another daemon.
func TestMemoryWithoutItsName(t *testing.T) {
	d := serve(t)
	if err := os.WriteFile(filepath.Join(d.Data, "f"), []byte("12345"), 0o644); err != nil {
		t.Fatal(err)
	}
	e := engine(t, d, ringio.Options{})
	gone, taken := shared(t, e, 4096), shared(t, e, 4096)
	for _, mem := range []*memory.Memory{gone, taken} {
		if err := shm.Remove(mem.Name()); err != nil {
			t.Fatal(err)
		}
	}
	other, err := shm.Create(taken.Name(), 4096, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Unmap()
	for range 2 {
		f := open(t, e, d, "f")
		for _, mem := range []*memory.Memory{gone, taken} {
			clear(mem.Bytes())
			if n, err := do(t, e, transfer.Op{File: f, Buf: mem.Bytes()}); n != 5 || err != nil || string(mem.Bytes()[:5]) != "12345" {
				t.Errorf("%d, %v: %q", n, err, mem.Bytes()[:5])
			}
		}
		d.Kill()
		d.Start(t)
	}
	if other.Bytes()[0] != 0 {
		t.Error("the object that has the name now was written to")
	}
}

// A daemon is replaced while no move is under way, before the engine has noticed.
func TestReplacedDaemon(t *testing.T) {
	d := serve(t)
	if err := os.WriteFile(filepath.Join(d.Data, "f"), []byte("12345"), 0o644); err != nil {
		t.Fatal(err)
	}
	e := engine(t, d, ringio.Options{})
	left, err := os.Open(filepath.Join(d.Mount, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close()
	d.Kill()
	if _, err := e.Open(left); err == nil {
		t.Error("opened with no daemon there")
	}
	d.Start(t)
	f := open(t, e, d, "f")
	if n, err := do(t, e, transfer.Op{File: f, Buf: make([]byte, 10)}); n != 5 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if _, err := e.Open(left); !errors.Is(err, ringio.ErrStale) {
		t.Errorf("a file of the old daemon: %v", err)
	}
	d.Kill()
	d.Start(t)
	mem := shared(t, e, 4096)
	if n, err := do(t, e, transfer.Op{File: open(t, e, d, "f"), Buf: mem.Bytes()}); n != 5 || err != nil {
		t.Errorf("into memory that came later: %d, %v", n, err)
	}
}

// stopped returns a stopped daemon, and an engine with little space in each direction: 4
// entries, 16 pieces of 4 KiB, and 8 moves in the queue.
func stopped(t *testing.T, timeout time.Duration) (*daemontest.Daemon, *ringio.Engine, transfer.File, []byte) {
	d := serve(t)
	if err := os.WriteFile(filepath.Join(d.Data, "f"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	e := engine(t, d, ringio.Options{Streams: 1, Entries: 4, BufferBytes: 128 << 10, WaitingQueueDepth: 8, Timeout: timeout})
	mem := shared(t, e, 1<<20)
	f := create(t, e, d, "f")
	d.Freeze(t)
	return d, e, f, mem.Bytes()
}

func TestStoppedDaemon(t *testing.T) {
	d, e, f, mem := stopped(t, 200*time.Millisecond)
	for _, write := range []bool{false, true} {
		var ops []transfer.Op
		for i := range 20 { // in flight, waiting, and waiting to wait
			op := transfer.Op{File: f, Buf: mem[i*4096:][:4096], Write: write}
			if i%2 == 1 {
				op.Buf = make([]byte, 4096)
			}
			ops = append(ops, op)
		}
		abandoned := 0
		for i, r := range results(t.Context(), e, ops) {
			switch {
			case !errors.Is(r.err, kv.ErrTimeout):
				t.Errorf("write %v, move %d: %v", write, i, r.err)
			case !errors.Is(r.err, kv.ErrAbandoned):
			case i%2 == 1:
				t.Errorf("write %v, move %d: a buffer that was copied is abandoned", write, i)
			default:
				abandoned++
			}
		}
		if abandoned != 2 { // of the 4 in flight, half are in place
			t.Errorf("write %v: %d are abandoned, want 2", write, abandoned)
		}
	}
	d.Thaw(t)
	for _, write := range []bool{false, true} {
		var ops []transfer.Op
		for range 40 { // more than there are entries and pieces
			ops = append(ops, transfer.Op{File: f, Buf: make([]byte, 8192), Write: write})
		}
		for deadline := time.Now().Add(20 * time.Second); ; {
			failed := 0
			for _, r := range results(t.Context(), e, ops) {
				if r.err != nil || r.n != 8192 {
					failed++
				}
			}
			if failed == 0 {
				break
			}
			if time.Now().After(deadline) {
				t.Fatalf("write %v: %d of %d fail although the daemon goes on", write, failed, len(ops))
			}
		}
	}
}

// The mount is cut off from a daemon that is only stopped: it may still write, even if
// another daemon has taken its place.
func TestCutOffDaemon(t *testing.T) {
	for name, replaced := range map[string]bool{"no daemon": false, "another daemon": true} {
		t.Run(name, func(t *testing.T) { testCutOff(t, replaced) })
	}
}

func testCutOff(t *testing.T, replaced bool) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	d, e, f, mem := stopped(t, 20*time.Second)
	ops := []transfer.Op{{File: f, Buf: mem[:4096]}, {File: f, Buf: make([]byte, 4096)}}
	got := make(chan []result)
	go func() { got <- results(t.Context(), e, ops) }()
	d.CutOff()
	r := <-got
	if !errors.Is(r[0].err, kv.ErrAbandoned) {
		t.Errorf("in place: %v", r[0].err)
	}
	if !errors.Is(r[1].err, ringio.ErrStale) || errors.Is(r[1].err, kv.ErrAbandoned) {
		t.Errorf("staged: %v", r[1].err)
	}
	if replaced {
		d.Supplant(t)
		create(t, e, d, "g")
	}
	if err := e.Close(); !errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("close: %v", err)
	}
}

func TestCancel(t *testing.T) {
	_, e, f, mem := stopped(t, time.Minute)
	var ops []transfer.Op
	for i := range 20 { // 4 in flight, 8 in the queue, and Do waits with the rest
		ops = append(ops, transfer.Op{File: f, Buf: mem[i*4096:][:4096]})
	}
	ctx, cancel := context.WithCancel(t.Context())
	var canceled atomic.Int64
	done := make(chan struct{})
	for i := range ops {
		ops[i].Done = func(_ int, err error) {
			if errors.Is(err, context.Canceled) && canceled.Add(1) == 16 {
				close(done)
			}
		}
	}
	went := make(chan struct{})
	go func() {
		e.Do(ctx, ops)
		close(went)
	}()
	cancel()
	<-went
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Errorf("%d moves were cancelled, want 16", canceled.Load())
	}
}

func TestCloseEndsWhatIsUnderWay(t *testing.T) {
	d := serve(t)
	if err := os.WriteFile(filepath.Join(d.Data, "f"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	e := engine(t, d, ringio.Options{Entries: 2, BufferBytes: 1 << 20})
	f := open(t, e, d, "f")
	var rounds atomic.Int64
	enough := make(chan struct{})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			ops := make([]transfer.Op, 20)
			for {
				for i := range ops {
					ops[i] = transfer.Op{File: f, Buf: make([]byte, 50_000)}
				}
				closed := 0
				for _, r := range results(t.Context(), e, ops) {
					switch {
					case errors.Is(r.err, kv.ErrClosed):
						closed++
					case r.err != nil || r.n != 50_000:
						t.Errorf("%d, %v", r.n, r.err)
					}
				}
				if rounds.Add(1) == 24 {
					close(enough)
				}
				if closed == len(ops) {
					return
				}
			}
		})
	}
	<-enough
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	wg.Wait()
	if _, err := e.Open(os.Stdin); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("open: %v", err)
	}
	if err := e.Register("x", nil); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("register: %v", err)
	}
	if err := e.Close(); err != nil {
		t.Errorf("closed again: %v", err)
	}
	left, err := os.ReadDir(filepath.Join(d.Mount, "3fs-virt", "iovs"))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range left {
		if !bytes.HasPrefix([]byte(l.Name()), []byte("submit-ios")) {
			t.Errorf("%s is left behind", l.Name())
		}
	}
}

func TestCloseOfAStoppedDaemon(t *testing.T) {
	_, e, f, mem := stopped(t, 200*time.Millisecond)
	done := make(chan error, 1)
	e.Do(t.Context(), []transfer.Op{{File: f, Buf: mem[:4096], Done: func(_ int, err error) { done <- err }}})
	if err := e.Close(); !errors.Is(err, kv.ErrTimeout) {
		t.Errorf("close: %v", err)
	}
	if err := <-done; !errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("in flight: %v", err)
	}
	// Whether it asks the daemon depends on the data directory's file system.
	if err := f.Close(); err != nil && !errors.Is(err, kv.ErrTimeout) {
		t.Errorf("close of a file: %v", err)
	}
}

// A daemon that stops during Open holds up only that call, not Close.
func TestOpenThatHangs(t *testing.T) {
	d := serve(t)
	e := engine(t, d, ringio.Options{Timeout: 500 * time.Millisecond})
	f, err := os.Create(filepath.Join(d.Mount, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d.Freeze(t)
	opened := make(chan struct{})
	go func() {
		defer close(opened)
		if _, err := e.Open(f); err == nil {
			t.Error("opened although the engine is closed")
		}
	}()
	within(t, "Open calls the daemon", func() bool {
		stacks := make([]byte, 1<<20)
		return bytes.Contains(stacks[:runtime.Stack(stacks, true)], []byte("IoctlGetInt"))
	})
	closed := make(chan error)
	go func() { closed <- e.Close() }()
	select {
	case err := <-closed:
		if !errors.Is(err, kv.ErrTimeout) {
			t.Errorf("close: %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Error("Close waits for Open")
	}
	d.Thaw(t)
	<-opened
}

// Close waits for pieces that are under way, but not for the rest of a move.
func TestCloseCutsLongMovesShort(t *testing.T) {
	d, e, f, _ := stopped(t, time.Minute)
	results := make(chan error, 2)
	done := func(_ int, err error) { results <- err }
	e.Do(t.Context(), []transfer.Op{
		{File: f, Buf: make([]byte, 1<<20), Done: done}, // 256 pieces, of which 4 are begun
		{File: f, Buf: make([]byte, 1), Done: done},
	})
	closed := make(chan error)
	go func() { closed <- e.Close() }()
	if err := <-results; !errors.Is(err, kv.ErrClosed) { // so the direction is closed
		t.Errorf("what has not begun: %v", err)
	}
	d.Thaw(t)
	if err := <-results; !errors.Is(err, kv.ErrClosed) {
		t.Errorf("what was not all begun: %v", err)
	}
	if err := <-closed; err != nil {
		t.Errorf("close: %v", err)
	}
}

func within(t *testing.T, what string, is func() bool) {
	t.Helper()
	for patience := time.Now().Add(20 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(patience) {
			t.Fatalf("not in time: %s", what)
		}
	}
}
