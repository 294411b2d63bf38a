package tier_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/faultdir"
	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/segment"
	"github.com/kv3fs/kv3fs/kvstore/internal/tier"
)

// lines is what was logged.
type lines struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.all.Write(p)
}

func (l *lines) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.all.String(), what)
}

// A far store whose names are there and whose bytes are not answers again only when bytes come.
func TestBytesHang(t *testing.T) {
	dir := t.TempDir()
	var log lines
	a, b := hostOn(t, dir, "a", tier.Options{}), hostOn(t, dir, "b", tier.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))})
	a.save(keys(0, 3)...)
	a.flush()
	b.far.Set(fault.Fault{Method: fault.Load, Err: kv.ErrTimeout})
	if err := b.tryLoad(b.Store, key(1)); !errors.Is(err, kv.ErrTimeout) {
		t.Fatal(err)
	}
	before := b.far.Hits()[0]
	b.eventually("it is read again and again", func() bool { return b.far.Hits()[0] >= before+2 })
	if n := b.has(b.Store, keys(0, 3)...); n != 0 || log.count("answers again") > 0 {
		t.Errorf("%d are found; the log: %s", n, log.all.String())
	}
	b.far.Set()
	b.eventually("all are found", func() bool { return b.has(b.Store, keys(0, 3)...) == 3 })
	b.load(keys(0, 3)...)
	if log.count("does not answer") != 1 || log.count("answers again") != 1 {
		t.Errorf("the log: %s", log.all.String())
	}
}

// A block that hangs alone keeps the far store from being asked only for a while, and one that is gone does not.
func TestOneBlockHangs(t *testing.T) {
	dir := t.TempDir()
	a, b := hostOn(t, dir, "a", tier.Options{}), hostOn(t, dir, "b", tier.Options{})
	a.save(keys(0, 3)...)
	a.flush()
	b.load(key(0))
	b.far.Set(fault.Fault{Method: fault.Load, Where: func(k kv.Key, _ int) bool { return k == key(1) }, Err: syscall.ETIMEDOUT})
	if err := b.tryLoad(b.Store, key(1)); !errors.Is(err, syscall.ETIMEDOUT) {
		t.Fatal(err)
	}
	b.eventually("the others are found again", func() bool { return b.has(b.Store, key(2)) == 1 })
	b.load(key(2))
}

// That a block is gone needs no bytes, so it does not show that bytes come: what this host has sent does.
func TestGoneIsNoProof(t *testing.T) {
	dir := t.TempDir()
	a, b := hostOn(t, dir, "a", tier.Options{}), hostOn(t, dir, "b", tier.Options{})
	a.save(keys(0, 3)...)
	a.flush()
	b.save(keys(10, 1)...)
	b.flush()
	isGone := func(k kv.Key, _ int) bool { return k == key(1) }
	b.far.Set(fault.Fault{Method: fault.Load, Err: kv.ErrTimeout})
	if err := b.tryLoad(b.Store, key(1)); !errors.Is(err, kv.ErrTimeout) {
		t.Fatal(err)
	}
	b.far.Set(fault.Fault{Method: fault.Load, Where: isGone, Err: kv.ErrMiss}, fault.Fault{Method: fault.Load, Err: kv.ErrTimeout})
	before := b.far.Hits()[1]
	b.eventually("what was sent is read, too", func() bool { return b.far.Hits()[1] >= before+3 })
	if n := b.has(b.Store, keys(0, 3)...); n != 0 {
		t.Errorf("%d are found, though nothing can be read", n)
	}
	b.far.Set(fault.Fault{Method: fault.Load, Where: isGone, Err: kv.ErrMiss})
	b.eventually("the others are found", func() bool { return b.has(b.Store, key(0), key(2)) == 2 })
}

// Where all that can be asked for is gone, a few answers are enough.
func TestAllIsGone(t *testing.T) {
	dir := t.TempDir()
	a, b := hostOn(t, dir, "a", tier.Options{}), hostOn(t, dir, "b", tier.Options{})
	a.save(keys(0, 2)...)
	a.flush()
	b.far.Set(fault.Fault{Method: fault.Load, Err: kv.ErrTimeout})
	if err := b.tryLoad(b.Store, key(1)); !errors.Is(err, kv.ErrTimeout) {
		t.Fatal(err)
	}
	b.far.Set(fault.Fault{Method: fault.Load, Err: kv.ErrMiss})
	b.eventually("it is asked again", func() bool { return b.has(b.Store, keys(0, 2)...) == 2 })
}

// Memory of calls that hang comes back when they have returned.
func TestMemoryOfCallsThatHang(t *testing.T) {
	shared := faultdir.New(t)
	near, err := segment.Open(segment.Options{Dir: t.TempDir(), Layout: layout, CapacityBytes: 16 << 20, SegmentBytes: 2 << 20, Streams: 4})
	if err != nil {
		t.Fatal(err)
	}
	far, err := files.Open(files.Options{Dirs: []string{shared.Path}, Layout: layout, Streams: 4, Timeout: 2 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	h := &host{T: t, near: fault.New(near), far: fault.New(far)}
	if h.Store, err = tier.New(h.near, h.far, tier.Options{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		shared.Heal()
		if err := h.Close(); err != nil {
			t.Errorf("Close: %v", err)
		}
	})
	shared.Hang(func(c faultdir.Call) bool { return c.Op == "write" })
	h.save(keys(0, 3)...)
	h.eventually("memory is lost", func() bool { return h.Lost() > 0 })
	shared.Heal()
	h.eventually("memory is back", func() bool {
		runtime.GC()
		return h.Lost() == 0
	})
	h.eventually("what waited is sent", func() bool { return h.Flush(h.bounded()) == nil })
	if n := h.has(h.far, keys(0, 3)...); n != 3 {
		t.Errorf("%d are far", n)
	}
}

// Many damaged blocks and no memory to heal them cost a batch one timeout.
func TestManyDamagedBlocksAndNoMemory(t *testing.T) {
	dir := t.TempDir()
	a, b := hostOn(t, dir, "a", tier.Options{}), hostOn(t, dir, "b", tier.Options{FillBytes: 1, Timeout: 2 * time.Second})
	a.save(keys(0, 60)...)
	a.flush()
	b.save(keys(0, 40)...)
	hold := make(chan struct{})
	b.near.Set(
		fault.Fault{Method: fault.Save, Hold: hold},
		fault.Fault{Method: fault.Load, Where: func(_ kv.Key, index int) bool { return index == 1 }, Err: &kv.CorruptError{Where: "a test", What: "damaged"}},
	)
	b.load(keys(40, 20)...) // four of them have all memory
	task, err := b.Load(t.Context(), shards(keys(0, 40), false))
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(b.bounded()); !errors.Is(err, kv.ErrTimeout) || errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("loading: %v", err)
	}
	close(hold)
	b.near.Set()
}
