package usrbio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

var bg = context.Background()

// soon returns a context for a wait that should end by itself.
func soon(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(bg, 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

type rig struct {
	m *Mount
	p *peer
	r *Ring
	v *Iov
	f *File
}

// fixture has one ring, one iov of 64 KiB and a file of 32 KiB of random bytes.
func fixture(t testing.TB, o RingOptions) rig {
	t.Helper()
	m, p := testMount(t)
	r, err := m.NewRing(bg, o)
	if err != nil {
		t.Fatal(err)
	}
	v, err := m.NewIov(bg, 64<<10, IovOptions{})
	if err != nil {
		t.Fatal(err)
	}
	content := make([]byte, 32<<10)
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range content {
		content[i] = byte(rng.Uint32())
	}
	return rig{m, p, r, v, p.file(t, m, 42, syscall.O_RDWR, content)}
}

func (b rig) prepare(t testing.TB, off, n int64, userdata uint64) int {
	t.Helper()
	slot, err := b.r.Prepare(Request{File: b.f, FileOffset: off, Iov: b.v, IovOffset: off, Bytes: n, Userdata: userdata})
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

func TestReadThroughRing(t *testing.T) {
	b := fixture(t, RingOptions{})
	if b.r.Entries() != 128 {
		t.Errorf("%d entries by default", b.r.Entries())
	}
	if slot := b.prepare(t, 0, 8192, 77); slot != 0 {
		t.Errorf("slot %d, want 0", slot)
	}
	b.prepare(t, 8192, 8192, 78)
	if _, err := b.r.Prepare(Request{File: b.f, FileOffset: 32<<10 - 100, Iov: b.v, IovOffset: 16 << 10, Bytes: 4096, Userdata: 79}); err != nil { // across the end
		t.Fatal(err)
	}
	if err := b.r.Submit(); err != nil {
		t.Fatal(err)
	}
	var dst [8]Completion
	n, err := b.r.Wait(soon(t), dst[:], 3)
	if err != nil || n != 3 {
		t.Fatalf("wait: %d, %v", n, err)
	}
	for i, want := range []Completion{{0, 8192, 77}, {1, 8192, 78}, {2, 100, 79}} {
		if dst[i] != want {
			t.Errorf("completion %+v, want %+v", dst[i], want)
		}
	}
	if !bytes.Equal(b.v.Bytes()[:16384], b.p.content(42)[:16384]) {
		t.Error("the bytes read are not the file's")
	}
	if b.r.InFlight() != 0 {
		t.Errorf("%d in flight", b.r.InFlight())
	}
}

func TestWriteThroughRing(t *testing.T) {
	for _, priority := range []Priority{PriorityHigh, PriorityNormal, PriorityLow} {
		b := fixture(t, RingOptions{Write: true, Priority: priority})
		copy(b.v.Bytes(), strings.Repeat("kv", 2048))
		b.prepare(t, 0, 4096, 1)
		b.r.Submit()
		var dst [1]Completion
		if n, err := b.r.Wait(soon(t), dst[:], 1); n != 1 || err != nil || dst[0].Result != 4096 {
			t.Fatalf("wait: %d %+v, %v", n, dst, err)
		}
		if !bytes.Equal(b.v.Bytes()[:4096], b.p.content(42)[:4096]) {
			t.Error("the bytes written are not the iov's")
		}
	}
}

func TestPrepareAndWaitDoNotAllocate(t *testing.T) {
	if invariants.Enabled {
		t.Skip("assertions allocate")
	}
	b := fixture(t, RingOptions{})
	b.p.stalled.Store(true)
	r := b.p.only(t)
	var (
		dst    [1]Completion
		ticket uint64
	)
	allocs := testing.AllocsPerRun(1000, func() {
		ticket++
		slot, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16})
		if err != nil {
			t.Fatal(err)
		}
		r.mem.StoreInt32(wire.OffSqeTail, r.mem.LoadInt32(wire.OffSqeHead))
		r.complete(wire.Cqe{Index: int32(slot), Result: 16, Userdata: ticket})
		if n, err := b.r.Wait(bg, dst[:], 1); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations for a request", allocs)
	}
}

// Cases 28 and 29: the ring is full after Entries, and the lowest slot comes first.
func TestRingFullAndLowestSlot(t *testing.T) {
	b := fixture(t, RingOptions{Entries: 4})
	b.p.stalled.Store(true)
	for want := range 4 {
		if slot := b.prepare(t, 0, 16, uint64(want)); slot != want {
			t.Errorf("slot %d, want %d", slot, want)
		}
	}
	_, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16, Userdata: 4})
	if !errors.Is(err, ErrRingFull) || !errors.Is(err, syscall.EAGAIN) {
		t.Fatalf("fifth: %v", err)
	}
	if b.r.InFlight() != 4 {
		t.Errorf("%d in flight", b.r.InFlight())
	}
	// The daemon takes all requests and completes only slot 1.
	r := b.p.only(t)
	r.mem.StoreInt32(wire.OffSqeTail, 4)
	r.sqeTail = 4
	r.complete(wire.Cqe{Index: 1, Result: 16, Userdata: 2})
	var dst [4]Completion
	if n, err := b.r.Wait(bg, dst[:], 0); n != 1 || err != nil || dst[0] != (Completion{1, 16, 1}) {
		t.Fatalf("poll: %d %+v, %v", n, dst[0], err)
	}
	if slot := b.prepare(t, 0, 16, 9); slot != 1 {
		t.Errorf("slot %d, want 1", slot)
	}
}

// 4.7: the queue can be full although a slot is free.
func TestQueueFullWithFreeSlot(t *testing.T) {
	b := fixture(t, RingOptions{Entries: 2})
	b.p.stalled.Store(true)
	b.prepare(t, 0, 16, 0)
	b.prepare(t, 0, 16, 1)
	b.p.only(t).complete(wire.Cqe{Index: 1, Result: 16, Userdata: 2}) // out of order: the tail stays
	var dst [2]Completion
	if n, err := b.r.Wait(bg, dst[:], 1); n != 1 || err != nil {
		t.Fatal(n, err)
	}
	if _, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16, Userdata: 2}); !errors.Is(err, ErrRingFull) {
		t.Fatalf("prepare: %v", err)
	}
	if b.r.InFlight() != 1 {
		t.Errorf("%d in flight after a refusal", b.r.InFlight())
	}
}

func TestPrepareRefuses(t *testing.T) {
	b := fixture(t, RingOptions{})
	w, err := b.m.NewRing(bg, RingOptions{Write: true})
	if err != nil {
		t.Fatal(err)
	}
	blocks, err := b.m.NewIov(bg, 4000, IovOptions{BlockBytes: 1000})
	if err != nil {
		t.Fatal(err)
	}
	readOnly := b.p.file(t, b.m, 43, syscall.O_RDONLY, []byte{1})
	writeOnly := b.p.file(t, b.m, 44, syscall.O_WRONLY, []byte{1})
	closedFile := b.p.file(t, b.m, 45, syscall.O_RDWR, []byte{1})
	closedFile.Close(bg)
	closedIov, err := b.m.NewIov(bg, 10, IovOptions{})
	if err != nil {
		t.Fatal(err)
	}
	closedIov.Close(bg)
	other, _ := testMount(t)
	foreign, err := other.NewIov(bg, 100, IovOptions{})
	if err != nil {
		t.Fatal(err)
	}
	const size = 64 << 10
	for _, c := range []struct {
		name      string
		r         *Ring
		f         *File
		fileOff   int64
		v         *Iov
		iovOff, n int64
		want      error
	}{
		{name: "no bytes", r: b.r, f: b.f, v: b.v, want: syscall.EINVAL},
		{name: "fewer than none", r: b.r, f: b.f, v: b.v, n: -1, want: syscall.EINVAL},
		{name: "least", r: b.r, f: b.f, v: b.v, n: math.MinInt64, want: syscall.EINVAL},
		{name: "before the iov", r: b.r, f: b.f, v: b.v, iovOff: -1, n: 10, want: syscall.EINVAL},
		{name: "across the iov's end", r: b.r, f: b.f, v: b.v, iovOff: size - 9, n: 10, want: syscall.EINVAL},
		{name: "up to the iov's end", r: b.r, f: b.f, v: b.v, iovOff: size - 10, n: 10},
		{name: "behind the iov", r: b.r, f: b.f, v: b.v, iovOff: size, n: 1, want: syscall.EINVAL},
		{name: "far behind the iov", r: b.r, f: b.f, v: b.v, iovOff: math.MaxInt64, n: math.MaxInt64, want: syscall.EINVAL},
		{name: "before the file", r: b.r, f: b.f, fileOff: -1, v: b.v, n: 1, want: syscall.EINVAL},
		{name: "behind any file", r: b.r, f: b.f, fileOff: math.MaxInt64, v: b.v, n: 1, want: syscall.EINVAL},
		{name: "last byte of any file", r: b.r, f: b.f, fileOff: math.MaxInt64 - 1, v: b.v, n: 1},
		{name: "a whole block", r: b.r, f: b.f, v: blocks, iovOff: 1000, n: 1000},
		{name: "across blocks", r: b.r, f: b.f, v: blocks, iovOff: 999, n: 2, want: syscall.EINVAL},
		{name: "no file", r: b.r, v: b.v, n: 1, want: syscall.EINVAL},
		{name: "no iov", r: b.r, f: b.f, n: 1, want: syscall.EINVAL},
		{name: "iov of another mount", r: b.r, f: b.f, v: foreign, n: 1, want: syscall.EINVAL},
		{name: "closed file", r: b.r, f: closedFile, v: b.v, n: 1, want: syscall.EBADF},
		{name: "closed iov", r: b.r, f: b.f, v: closedIov, n: 1, want: syscall.EINVAL},
		{name: "read of a write-only file", r: b.r, f: writeOnly, v: b.v, n: 1, want: syscall.EACCES},
		{name: "read of a read-only file", r: b.r, f: readOnly, v: b.v, n: 1},
		{name: "write to a read-only file", r: w, f: readOnly, v: b.v, n: 1, want: syscall.EACCES},
		{name: "write to a write-only file", r: w, f: writeOnly, v: b.v, n: 1},
	} {
		before := c.r.InFlight()
		slot, err := c.r.Prepare(Request{File: c.f, FileOffset: c.fileOff, Iov: c.v, IovOffset: c.iovOff, Bytes: c.n})
		if !errors.Is(err, c.want) {
			t.Errorf("%s: %v, want %v", c.name, err, c.want)
		}
		if err != nil && (slot != -1 || c.r.InFlight() != before) {
			t.Errorf("%s: slot %d, %d more in flight after a refusal", c.name, slot, c.r.InFlight()-before)
		}
	}
}

// Cases 53 and 54, and a wait cut short.
func TestWaitEndsEarly(t *testing.T) {
	b := fixture(t, RingOptions{})
	b.p.stalled.Store(true)
	b.prepare(t, 0, 16, 0)
	b.prepare(t, 0, 16, 1)
	var dst [4]Completion
	if n, err := b.r.Wait(bg, dst[:], 0); n != 0 || err != nil {
		t.Errorf("poll: %d, %v", n, err)
	}
	if n, err := b.r.Wait(bg, dst[:], -5); n != 0 || err != nil {
		t.Errorf("poll: %d, %v", n, err)
	}
	if _, err := b.r.Wait(bg, nil, 1); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("with an empty dst: %v", err)
	}
	expired, cancel := context.WithCancel(bg)
	cancel()
	b.p.only(t).complete(wire.Cqe{Index: 0, Result: 16, Userdata: 1})
	if n, err := b.r.Wait(expired, dst[:], 1); n != 1 || err != nil {
		t.Errorf("a completion that is there although the context has ended: %d, %v", n, err)
	}
	if n, err := b.r.Wait(expired, dst[:], 1); n != 0 || !errors.Is(err, context.Canceled) {
		t.Errorf("context ended: %d, %v", n, err)
	}
	start := time.Now() // before the context, whose 20 ms begin as it is made
	short, cancel := context.WithTimeout(bg, 20*time.Millisecond)
	defer cancel()
	if n, err := b.r.Wait(short, dst[:], 1); n != 0 || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("deadline: %d, %v", n, err)
	}
	if d := time.Since(start); d < 20*time.Millisecond || d > 10*time.Second {
		t.Errorf("a wait of 20 ms took %v", d)
	}
}

// A wait for many completions naps. It is as correct as one that sleeps on the
// semaphore, and ends for the same reasons, as early.
func TestWaitNaps(t *testing.T) {
	const n = 32
	slowly := func(t *testing.T) rig {
		b := fixture(t, RingOptions{Entries: n})
		b.p.mu.Lock()
		defer b.p.mu.Unlock()
		b.p.execute = func(bool, wire.Args) int64 {
			time.Sleep(200 * time.Microsecond)
			return 16
		}
		return b
	}
	t.Run("all come", func(t *testing.T) {
		b := slowly(t)
		var dst [n]Completion
		for round := range 5 {
			for i := range n {
				b.prepare(t, int64(i*16), 16, uint64(i))
				b.r.Submit() // each by itself: so they come in many batches
			}
			got, err := b.r.Wait(soon(t), dst[:], n)
			if got != n || err != nil {
				t.Fatalf("round %d: %d, %v", round, got, err)
			}
			for i, c := range dst {
				if c.Userdata != uint64(i) || c.Result != 16 {
					t.Fatalf("round %d: completion %d is %+v", round, i, c)
				}
			}
		}
	})

	// The daemon answers two of 32 requests, from which the wait can judge, and then
	// no more.
	stuck := func(t *testing.T) rig {
		b := fixture(t, RingOptions{Entries: n})
		b.p.stalled.Store(true)
		for i := range n {
			b.prepare(t, int64(i*16), 16, uint64(i))
		}
		return b
	}
	wait := func(b rig, ctx context.Context) (<-chan struct{}, *int, *error) {
		ended, got, err := make(chan struct{}), new(int), new(error)
		go func() {
			defer close(ended)
			var dst [n]Completion
			*got, *err = b.r.Wait(ctx, dst[:], n)
		}()
		return ended, got, err
	}
	answerTwo := func(t *testing.T, b rig) {
		time.Sleep(3 * time.Millisecond)
		r := b.p.only(t)
		for i := range int32(2) {
			r.complete(wire.Cqe{Index: i, Result: 16, Userdata: uint64(i) + 1})
			r.mem.Sem(r.SemOff()).Post()
		}
	}
	for _, c := range []struct {
		name string
		end  func(b rig, cancel func())
		want error
	}{
		{"context ended", func(b rig, cancel func()) { cancel() }, context.Canceled},
		{"deadline", func(b rig, cancel func()) {}, context.DeadlineExceeded},
		{"closed", func(b rig, cancel func()) { b.r.Close(bg) }, os.ErrClosed},
		{"daemon gone", func(b rig, cancel func()) { b.p.gone.Store(true) }, ErrDaemonGone},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := stuck(t)
			ctx, cancel := context.WithTimeout(bg, 20*time.Second)
			if c.want == context.DeadlineExceeded {
				ctx, cancel = context.WithTimeout(bg, 4*time.Millisecond)
			}
			defer cancel()
			ended, got, err := wait(b, ctx)
			answerTwo(t, b)
			began := time.Now()
			c.end(b, cancel)
			select {
			case <-ended:
			case <-time.After(10 * time.Second):
				t.Fatal("the wait does not end")
			}
			if !errors.Is(*err, c.want) || *got > 2 {
				t.Errorf("wait: %d, %v", *got, *err)
			}
			t.Logf("%d completions, ended after %v", *got, time.Since(began).Round(100*time.Microsecond))
		})
	}
}

// A waiter for more than is in flight is woken when half of it is there, so that whoever
// submits the rest gets slots in time.
func TestAwaitsHalfOfTheRing(t *testing.T) {
	b := fixture(t, RingOptions{Entries: 4})
	b.p.stalled.Store(true)
	for i := range uint64(4) {
		b.prepare(t, 0, 16, i)
	}
	r := b.p.only(t)
	ctx, cancel := context.WithCancel(bg)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = b.r.Wait(ctx, make([]Completion, 16), 16)
	}()
	defer func() { cancel(); <-done }()
	for end := time.Now().Add(20 * time.Second); r.mem.LoadInt32(r.AwaitedOff()) != 2; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("the waiter awaits %d completions, not 2", r.mem.LoadInt32(r.AwaitedOff()))
		}
	}
}

// A waiter says how many completions it lacks while it sleeps, and a daemon that posts no
// sooner wakes it once.
func TestSaysWhatItAwaits(t *testing.T) {
	b := fixture(t, RingOptions{Entries: 4})
	b.p.stalled.Store(true)
	for i := range uint64(4) {
		b.prepare(t, 0, 16, i)
	}
	r := b.p.only(t)
	awaited := func() int32 { return r.mem.LoadInt32(r.AwaitedOff()) }
	done := make(chan error, 1)
	go func() {
		var dst [4]Completion
		n, err := b.r.Wait(bg, dst[:], 3)
		if err == nil && n != 3 {
			err = fmt.Errorf("%d completions", n)
		}
		done <- err
	}()
	for end := time.Now().Add(20 * time.Second); awaited() != 3; runtime.Gosched() {
		if time.Now().After(end) {
			t.Fatalf("the waiter awaits %d completions, not 3", awaited())
		}
	}
	for i := range int32(3) {
		r.complete(wire.Cqe{Index: i, Result: 16, Userdata: uint64(i) + 1})
	}
	r.mem.Sem(r.SemOff()).Post()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := awaited(); got != 0 {
		t.Errorf("after the wait, %d completions are awaited", got)
	}
}

// A waiter for many completions spins until the last one, however many there are, if they come
// quickly.
func TestSpinGoesOn(t *testing.T) {
	for _, c := range []struct {
		took time.Duration
		n    int
		want time.Duration
	}{
		{0, 1, spinFor},
		{2 * spinFor, 64, 3 * spinFor},
		{2 * spinFor, 8, spinFor},
	} {
		if got := spinUntil(c.took, c.n); got != c.want {
			t.Errorf("%d completions after %v: spins until %v, want %v", c.n, c.took, got, c.want)
		}
	}
}

// A second waiter obeys its context while the first one holds the ring.
func TestWaitersTakeTurns(t *testing.T) {
	b := fixture(t, RingOptions{})
	b.p.stalled.Store(true)
	b.prepare(t, 0, 16, 0)
	ctx, cancel := context.WithCancel(bg)
	var wg sync.WaitGroup
	wg.Go(func() {
		var dst [1]Completion
		b.r.Wait(ctx, dst[:], 1)
	})
	for len(b.r.turn) == 0 {
		time.Sleep(time.Millisecond)
	}
	short, stop := context.WithTimeout(bg, 10*time.Millisecond)
	defer stop()
	var dst [1]Completion
	if _, err := b.r.Wait(short, dst[:], 0); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("second waiter: %v", err)
	}
	cancel()
	wg.Wait()
}

// Case 55: a completion is found even if its post is lost.
func TestLostPost(t *testing.T) {
	b := fixture(t, RingOptions{})
	b.p.mute.Store(true)
	var dst [1]Completion
	for i := range 50 {
		b.prepare(t, 0, 16, uint64(i))
		b.r.Submit()
		if n, err := b.r.Wait(soon(t), dst[:], 1); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
}

func TestDaemonGone(t *testing.T) {
	b := fixture(t, RingOptions{})
	b.p.stalled.Store(true)
	b.prepare(t, 0, 16, 0)
	b.prepare(t, 0, 16, 1)
	b.p.only(t).complete(wire.Cqe{Index: 1, Result: 16, Userdata: 2})
	b.p.gone.Store(true)
	var dst [4]Completion
	start := time.Now()
	n, err := b.r.Wait(bg, dst[:], 2)
	if n != 1 || !errors.Is(err, ErrDaemonGone) || !errors.Is(err, syscall.ENOTCONN) {
		t.Fatalf("wait: %d, %v", n, err)
	}
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("it took %v to notice", d)
	}
	if _, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16, Userdata: 1}); !errors.Is(err, ErrDaemonGone) {
		t.Errorf("prepare: %v", err)
	}
	if err := b.r.Submit(); !errors.Is(err, ErrDaemonGone) {
		t.Errorf("submit: %v", err)
	}
	if _, err := b.m.NewIov(bg, 100, IovOptions{}); !errors.Is(err, ErrDaemonGone) {
		t.Errorf("new iov: %v", err)
	}
	if _, err := b.m.NewRing(bg, RingOptions{}); !errors.Is(err, ErrDaemonGone) {
		t.Errorf("new ring: %v", err)
	}
	if err := b.m.Close(bg); err != nil {
		t.Errorf("close: %v", err)
	}
}

// A program that only polls notices it, too.
func TestDaemonGoneWhilePolling(t *testing.T) {
	b := fixture(t, RingOptions{})
	b.p.stalled.Store(true)
	b.prepare(t, 0, 16, 0)
	b.p.gone.Store(true)
	var dst [4]Completion
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		b.r.Wait(bg, dst[:], 0)
		if _, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16, Userdata: 1}); errors.Is(err, ErrDaemonGone) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal("not noticed")
		}
	}
}

// The daemon is alive and has dropped the ring, as a real 3FS does when the wrong
// thread lists the directory.
func TestRingForgotten(t *testing.T) {
	b := fixture(t, RingOptions{})
	b.p.stalled.Store(true)
	b.prepare(t, 0, 16, 0)
	if err := b.p.unlink(bg, b.r.link); err != nil {
		t.Fatal(err)
	}
	var dst [1]Completion
	if _, err := b.r.Wait(bg, dst[:], 1); !errors.Is(err, ErrDaemonGone) {
		t.Fatalf("wait: %v", err)
	}
}

func TestHungDaemon(t *testing.T) {
	b := fixture(t, RingOptions{})
	b.p.stalled.Store(true)
	b.p.hang.Store(true)
	defer b.p.hang.Store(false)
	b.prepare(t, 0, 16, 0)
	ctx, cancel := context.WithTimeout(bg, 2*probeGap+50*time.Millisecond)
	defer cancel()
	var dst [1]Completion
	start := time.Now()
	if _, err := b.r.Wait(ctx, dst[:], 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("wait: %v", err)
	}
	if d := time.Since(start); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
}

// What a daemon must not write ends the ring and nothing else.
func TestProtocolBroken(t *testing.T) {
	for _, c := range []struct {
		name string
		do   func(r *peerRing)
		good int // completions that still come out
	}{
		{"index beyond the ring", func(r *peerRing) { r.complete(wire.Cqe{Index: 8, Userdata: 1}) }, 0},
		{"index far beyond", func(r *peerRing) { r.complete(wire.Cqe{Index: math.MaxInt32, Userdata: 1}) }, 0},
		{"index below", func(r *peerRing) { r.complete(wire.Cqe{Index: -1, Userdata: 1}) }, 0},
		{"least index", func(r *peerRing) { r.complete(wire.Cqe{Index: math.MinInt32, Userdata: 1}) }, 0},
		{"never requested", func(r *peerRing) { r.complete(wire.Cqe{Index: 5, Userdata: 0}) }, 0},
		{"other ticket", func(r *peerRing) { r.complete(wire.Cqe{Index: 0, Userdata: 2}) }, 0},
		{"twice", func(r *peerRing) {
			r.complete(wire.Cqe{Index: 0, Result: 16, Userdata: 1})
			r.complete(wire.Cqe{Index: 0, Result: 16, Userdata: 1})
			r.complete(wire.Cqe{Index: 1, Result: 16, Userdata: 2})
		}, 2},
		{"completion head beyond", func(r *peerRing) { r.mem.StoreInt32(wire.OffCqeHead, r.RingLen) }, 0},
		{"completion head below", func(r *peerRing) { r.mem.StoreInt32(wire.OffCqeHead, -1) }, 0},
		{"completion head runs ahead", func(r *peerRing) { r.mem.StoreInt32(wire.OffCqeHead, r.RingLen-1) }, 0},
		{"object shrunk to nothing", func(r *peerRing) { r.mem.Shrink(0) }, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := fixture(t, RingOptions{Entries: 8})
			b.p.stalled.Store(true)
			b.prepare(t, 0, 16, 0)
			b.prepare(t, 0, 16, 1)
			c.do(b.p.only(t))
			var dst [16]Completion
			n, err := b.r.Wait(soon(t), dst[:], 3)
			if n != c.good || !errors.Is(err, ErrProtocol) || !errors.Is(err, syscall.EPROTO) {
				t.Errorf("wait: %d, %v", n, err)
			}
			if _, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16, Userdata: 1}); !errors.Is(err, ErrProtocol) {
				t.Errorf("prepare: %v", err)
			}
			if err := b.r.Submit(); !errors.Is(err, ErrProtocol) {
				t.Errorf("submit: %v", err)
			}
			if err := b.r.Close(bg); err != nil {
				t.Errorf("close: %v", err)
			}
		})
	}
}

func TestProtocolBrokenUnderPrepare(t *testing.T) {
	for name, do := range map[string]func(r *peerRing){
		"tail beyond":   func(r *peerRing) { r.mem.StoreInt32(wire.OffSqeTail, r.RingLen) },
		"tail below":    func(r *peerRing) { r.mem.StoreInt32(wire.OffSqeTail, math.MinInt32) },
		"object shrunk": func(r *peerRing) { r.mem.Shrink(0) },
	} {
		t.Run(name, func(t *testing.T) {
			b := fixture(t, RingOptions{Entries: 8})
			do(b.p.only(t))
			if _, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16, Userdata: 1}); !errors.Is(err, ErrProtocol) {
				t.Errorf("prepare: %v", err)
			}
			if b.r.InFlight() != 0 {
				t.Errorf("%d in flight", b.r.InFlight())
			}
		})
	}
}

// A dropped completion is reported even if the wait got as many as it wanted.
func TestDroppedCompletionIsReported(t *testing.T) {
	b := fixture(t, RingOptions{})
	b.p.stalled.Store(true)
	b.prepare(t, 0, 16, 5)
	r := b.p.only(t)
	r.complete(wire.Cqe{Index: 99, Result: 16, Userdata: 1})
	r.complete(wire.Cqe{Index: 0, Result: 16, Userdata: 1})
	var dst [4]Completion
	n, err := b.r.Wait(soon(t), dst[:], 1)
	if n != 1 || dst[0].Userdata != 5 || !errors.Is(err, ErrProtocol) {
		t.Errorf("wait: %d %+v, %v", n, dst[0], err)
	}
}

func TestResults(t *testing.T) {
	b := fixture(t, RingOptions{})
	for _, c := range []struct {
		result, want int64
		err          error
	}{
		{0, 0, nil},
		{16, 16, nil},
		{17, -int64(syscall.EIO), syscall.EIO},
		{math.MaxInt64, -int64(syscall.EIO), syscall.EIO},
		{-int64(syscall.ENODATA), -int64(syscall.ENODATA), syscall.ENODATA},
		{-4096, -int64(syscall.EIO), syscall.EIO},
		{math.MinInt64, -int64(syscall.EIO), syscall.EIO},
	} {
		b.p.mu.Lock()
		b.p.execute = func(bool, wire.Args) int64 { return c.result }
		b.p.mu.Unlock()
		b.prepare(t, 0, 16, 0)
		b.r.Submit()
		var dst [1]Completion
		if _, err := b.r.Wait(soon(t), dst[:], 1); err != nil {
			t.Fatal(err)
		}
		if dst[0].Result != c.want || dst[0].Err() != c.err {
			t.Errorf("the daemon's result %d is returned as %d, %v", c.result, dst[0].Result, dst[0].Err())
		}
	}
}

func TestCloseEndsWait(t *testing.T) {
	b := fixture(t, RingOptions{})
	b.p.stalled.Store(true)
	b.prepare(t, 0, 16, 0)
	ended := make(chan error)
	for range 3 {
		go func() {
			var dst [1]Completion
			_, err := b.r.Wait(bg, dst[:], 1)
			ended <- err
		}()
	}
	time.Sleep(5 * time.Millisecond)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() { b.r.Close(bg) })
	}
	wg.Wait()
	for range 3 {
		if err := <-ended; !errors.Is(err, os.ErrClosed) {
			t.Errorf("wait: %v", err)
		}
	}
	if _, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16}); !errors.Is(err, os.ErrClosed) {
		t.Errorf("prepare: %v", err)
	}
	if err := b.r.Submit(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("submit: %v", err)
	}
	if err := b.r.Close(bg); err != nil {
		t.Errorf("second close: %v", err)
	}
}

// Every call at once, and Close: nothing may crash or hang.
func TestCloseRacesWithUse(t *testing.T) {
	for range 30 {
		b := fixture(t, RingOptions{Entries: 8})
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				for {
					if _, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16}); err != nil && !errors.Is(err, ErrRingFull) {
						return
					}
					if b.r.Submit() != nil {
						return
					}
				}
			})
			wg.Go(func() {
				var dst [4]Completion
				for {
					if _, err := b.r.Wait(bg, dst[:], 1); err != nil {
						return
					}
				}
			})
		}
		time.Sleep(time.Millisecond)
		wg.Go(func() { b.r.Close(bg) })
		wg.Go(func() { b.m.Close(bg) })
		wg.Wait()
	}
}

// One goroutine prepares and another waits. Under the race detector this also shows
// that what happened before Prepare is visible after Wait, and the reverse when a slot
// is used again: payload is plain memory.
func TestPreparerAndWaiter(t *testing.T) {
	total := 200_000
	if testing.Short() {
		total = 20_000
	}
	b := fixture(t, RingOptions{Entries: 61})
	b.p.reverse.Store(true)
	b.p.mu.Lock()
	b.p.execute = func(_ bool, a wire.Args) int64 { return int64(a.Len) }
	b.p.mu.Unlock()
	payload := make([]int, b.r.Entries())
	free := make(chan int, len(payload))
	for i := range payload {
		free <- i
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for i := range total {
			k := <-free
			payload[k] = i
			if _, err := b.r.Prepare(Request{File: b.f, FileOffset: int64(i), Iov: b.v, Bytes: int64(i%4096) + 1, Userdata: uint64(i)<<8 | uint64(k)}); err != nil {
				t.Error(err)
				return
			}
			if i%17 == 0 || len(free) == 0 || i == total-1 {
				b.r.Submit()
			}
		}
	})
	seen := make([]bool, total)
	var dst [32]Completion
	ctx := soon(t)
	for got := 0; got < total; {
		n, err := b.r.Wait(ctx, dst[:], 1)
		if err != nil {
			t.Fatalf("after %d: %v", got, err)
		}
		for _, c := range dst[:n] {
			i, k := int(c.Userdata>>8), int(c.Userdata&0xff)
			if seen[i] || payload[k] != i || c.Result != int64(i%4096)+1 {
				t.Fatalf("%+v: seen %v, payload %d", c, seen[i], payload[k])
			}
			seen[i] = true
			free <- k
		}
		got += n
	}
	wg.Wait()
}

// Several goroutines share a ring, and each takes any completions.
func TestManyPreparers(t *testing.T) {
	b := fixture(t, RingOptions{Entries: 16})
	const each, users = 2000, 4
	var wg sync.WaitGroup
	for range users {
		wg.Go(func() {
			var dst [4]Completion
			for prepared := 0; prepared < each; {
				_, err := b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 64})
				switch {
				case err == nil:
					prepared++
				case !errors.Is(err, ErrRingFull):
					t.Error(err)
					return
				}
				b.r.Submit()
				b.r.Wait(bg, dst[:], 0)
			}
		})
	}
	wg.Wait()
	ctx := soon(t)
	var dst [16]Completion
	for b.r.InFlight() > 0 {
		if _, err := b.r.Wait(ctx, dst[:], 1); err != nil {
			t.Fatal(err)
		}
	}
}

func TestRingLinkNames(t *testing.T) {
	for _, c := range []struct {
		o    RingOptions
		want string // after the id; "" is EINVAL
	}{
		{RingOptions{}, ".r0.t0"},
		{RingOptions{Write: true}, ".w0.t0"},
		{RingOptions{Entries: 64, Write: true, IODepth: 32, Priority: PriorityHigh}, ".w32.ph.t0"},
		{RingOptions{IODepth: -8, Timeout: 5 * time.Millisecond, Priority: PriorityLow}, ".r-8.pl.t5"},
		{RingOptions{Timeout: time.Microsecond}, ".r0.t1"},
		{RingOptions{AllowReadUncommitted: true}, ".r0.t0.f1"},
		{RingOptions{ForbidReadHoles: true}, ".r0.t0.f10"},
		{RingOptions{AllowReadUncommitted: true, ForbidReadHoles: true}, ".r0.t0.f11"},
		{RingOptions{Entries: 128, IODepth: 128}, ".r128.t0"},
		{RingOptions{Entries: 128, IODepth: 129}, ""},
		{RingOptions{Entries: -1}, ""},
		{RingOptions{Entries: maxEntries + 1}, ""},
		{RingOptions{Timeout: -1}, ""},
		{RingOptions{Timeout: math.MaxInt64}, ""},
		{RingOptions{IODepth: math.MinInt}, ""},
	} {
		l, _, err := c.o.link()
		if c.want == "" {
			if !errors.Is(err, syscall.EINVAL) {
				t.Errorf("%+v: %v", c.o, err)
			}
			continue
		}
		if name := l.Name(); err != nil || name[36:] != c.want {
			t.Errorf("%+v: %s, %v, want %s", c.o, name, err, c.want)
		}
	}
	m, _ := testMount(t)
	if _, err := m.NewRing(bg, RingOptions{Priority: 7}); !errors.Is(err, syscall.EINVAL) {
		t.Errorf("priority 7: %v", err)
	}
}

// Another process of this user shrinks the submit semaphore: no ring ends, since the daemon
// finds what was submitted without it.
func TestSubmitThroughShrunkenSemaphore(t *testing.T) {
	if raceEnabled {
		t.Skip("NOT TESTED: the race detector's accesses to shared memory cannot be guarded")
	}
	b := fixture(t, RingOptions{Entries: 4})
	sem, err := shm.CreateSem("kv3fs-test-"+wire.NewUUID().String(), uint32(os.Geteuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer sem.Close(true)
	whole := b.r.submit
	b.r.submit = sem
	if err := os.Truncate(sem.Path(), 0); err != nil {
		t.Fatal(err)
	}
	b.prepare(t, 0, 16, 7)
	if err := b.r.Submit(); err != nil {
		t.Fatalf("submit: %v", err)
	}
	whole.Post() // the daemon looks
	var dst [1]Completion
	if n, err := b.r.Wait(soon(t), dst[:], 1); n != 1 || err != nil || dst[0].Userdata != 7 {
		t.Errorf("%d completions, %+v, %v", n, dst[0], err)
	}
	b.r.submit = whole
}

// A failed registration leaves no object behind.
func TestRegistrationFails(t *testing.T) {
	sem, err := shm.CreateSem("kv3fs-test-"+wire.NewUUID().String(), uint32(os.Geteuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer sem.Close(true)
	m := newMount("/test", semRegistrar(sem.Path()))
	defer m.Close(bg)
	if _, err := m.NewRing(bg, RingOptions{}); !errors.Is(err, syscall.EPERM) {
		t.Errorf("new ring: %v", err)
	}
	if _, err := m.NewIov(bg, 100, IovOptions{}); !errors.Is(err, syscall.EPERM) {
		t.Errorf("new iov: %v", err)
	}
}

func FuzzRingMemory(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}, uint16(0))
	f.Add(bytes.Repeat([]byte{0xff}, 64), uint16(8))
	f.Add([]byte{1, 0, 0, 0, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0}, uint16(16+56*5))
	f.Fuzz(func(t *testing.T, scribble []byte, at uint16) {
		b := fixture(t, RingOptions{Entries: 4})
		b.p.stalled.Store(true)
		b.prepare(t, 0, 16, 10)
		b.prepare(t, 0, 16, 11)
		r := b.p.only(t)
		n := min(int64(len(scribble)), max(0, r.SemOff()-int64(at)))
		r.mem.CopyIn(int64(at), scribble[:max(0, n)])
		seen := map[uint64]bool{}
		for range 3 {
			var dst [8]Completion
			n, _ := b.r.Wait(bg, dst[:], 0)
			for _, c := range dst[:n] {
				if seen[c.Userdata] || c.Userdata < 10 || c.Userdata > 12 || c.Slot >= 4 || c.Result > 16 {
					t.Errorf("impossible completion %+v", c)
				}
				seen[c.Userdata] = true
			}
			if !seen[12] {
				b.r.Prepare(Request{File: b.f, Iov: b.v, Bytes: 16, Userdata: 12})
			}
		}
	})
}

func ExampleMount() {
	if err := func() error {
		m, err := Open(bg, "/mnt/3fs/models")
		if err != nil {
			return err
		}
		defer m.Close(bg)
		buf, err := m.NewIov(bg, 64<<20, IovOptions{})
		if err != nil {
			return err
		}
		ring, err := m.NewRing(bg, RingOptions{Entries: 64})
		if err != nil {
			return err
		}
		name, err := os.Open("/mnt/3fs/models/weights")
		if err != nil {
			return err
		}
		defer name.Close()
		file, err := m.Register(bg, name)
		if err != nil {
			return err
		}
		const block = 1 << 20
		for i := range int64(64) {
			if _, err := ring.Prepare(Request{File: file, FileOffset: i * block, Iov: buf, IovOffset: i * block, Bytes: block, Userdata: uint64(i)}); err != nil {
				return err
			}
		}
		if err := ring.Submit(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		done := make([]Completion, 64)
		n, err := ring.Wait(ctx, done, 64)
		for _, c := range done[:n] {
			if c.Err() != nil || c.Result < block {
				fmt.Println("block", c.Userdata, "is not there:", c.Result, c.Err())
				continue
			}
			fmt.Println("block", c.Userdata, "begins with", buf.Bytes()[c.Userdata*block])
		}
		return err
	}(); err != nil {
		fmt.Println(err)
	}
}

func ExampleRing_Do() {
	var (
		ring *Ring
		file *File
		buf  *Iov
	)
	requests := make([]Request, 1000)
	for i := range requests {
		off := int64(i) << 16
		requests[i] = Request{File: file, FileOffset: off, Iov: buf, IovOffset: off, Bytes: 1 << 16}
	}
	if err := ring.Do(context.Background(), requests); err != nil {
		fmt.Println(err)
		return
	}
	for i := range requests {
		if err := requests[i].Err(); err != nil {
			fmt.Println("request", i, err)
		}
	}
}
