package index

import (
	"errors"
	"fmt"
	"reflect"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// The memory that is counted is that which Go allocates.
func TestCosts(t *testing.T) {
	for name, c := range map[string]struct {
		of   any
		want uintptr
	}{"entry": {entry{}, entryBytes}, "hold": {hold{}, holdBytes}, "due": {due{}, dueBytes}, "slot": {slot(0), slotBytes}} {
		if got := reflect.TypeOf(c.of).Size(); got != c.want {
			t.Errorf("%s: %d bytes, counted as %d", name, got, c.want)
		}
	}
	if got := reflect.TypeOf(space{}).Size() + reflect.TypeOf(keyMap{}).Size(); got > spaceBytes {
		t.Errorf("a space: %d bytes", got)
	}
	if got := reflect.TypeOf(rank{}).Size(); got > rankBytes {
		t.Errorf("a rank: %d bytes", got)
	}
}

// hoard is a client that stores as many keys as it can.
type hoard struct {
	t     *testing.T
	x     *Index
	clock time.Time
	o     Options
	dir   string
	idle  uint64 // bytes of the heap before
}

const hoardBytes = 12 << 20

func newHoard(t *testing.T, memoryBytes int64) *hoard {
	h := &hoard{t: t, clock: time.Unix(1_800_000_000, 0), dir: t.TempDir(), idle: settledHeapBytes()}
	h.o = Options{Now: func() time.Time { return h.clock }}
	h.o.MemoryBytes = memoryBytes
	h.open()
	t.Cleanup(func() { h.x.Close() })
	return h
}

func (h *hoard) open() {
	h.t.Helper()
	var err error
	if h.x, err = open(h.dir, h.o); err != nil {
		h.t.Fatal(err)
	}
}

func settledHeapBytes() uint64 {
	runtime.GC()
	runtime.GC() // empties pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// mustBeSmall checks that the index counts no more than its bound, and takes no more than
// twice as much.
func (h *hoard) mustBeSmall() {
	h.t.Helper()
	if used := h.x.used.Load(); used > h.o.MemoryBytes+h.o.MemoryBytes/8 {
		h.t.Errorf("%d bytes are counted, the bound is %d", used, h.o.MemoryBytes)
	}
	if heap := settledHeapBytes(); heap > h.idle+2*uint64(h.o.MemoryBytes) {
		h.t.Errorf("the heap has grown by %d bytes, the bound is %d", heap-h.idle, h.o.MemoryBytes)
	}
	if err := h.x.Check(); err != nil {
		h.t.Error(err)
	}
	runtime.KeepAlive(h.x)
}

func (h *hoard) initialize(name pageservice.Space, rank int) {
	h.t.Helper()
	if _, err := h.x.Initialize(ctx, name, rank, pageservice.RankOptions{NumPages: pageservice.MaxPages}); err != nil {
		h.t.Fatal(err)
	}
}

// store reserves and confirms keys, and returns how many got a page.
func (h *hoard) store(name pageservice.Space, rank int, keys []string, confirm bool) (got int) {
	h.t.Helper()
	grants, err := h.x.Reserve(ctx, name, rank, keys, false)
	if err != nil {
		h.t.Fatal(err)
	}
	var written []pageservice.Placed
	for i, g := range grants {
		if g.Page != pageservice.None {
			written = append(written, pageservice.Placed{Key: keys[i], Page: g.Page})
		}
	}
	if confirm {
		done, err := h.x.Confirm(ctx, name, rank, written, nil)
		if err != nil || done.Keys != len(written) {
			h.t.Fatal(done, err)
		}
	}
	return len(written)
}

// batchOf returns the n-th batch of keys of some length.
func batchOf(n, size, length int) []string {
	keys := make([]string, size)
	for i := range keys {
		keys[i] = fmt.Sprintf("%0*x", length, n*size+i)
	}
	return keys
}

// Whatever clients store, the memory of the index is bounded, and new keys get pages.
func TestMemoryIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("takes several seconds")
	}
	one := pageservice.Space{Set: "vllm"}
	t.Run("keys", func(t *testing.T) {
		h := newHoard(t, hoardBytes)
		h.initialize(one, 0)
		const batches, size = 50, 4096
		first := 0
		for n := range batches {
			if h.store(one, 0, batchOf(n, size, 64), true) == size {
				first++
			}
			h.clock = h.clock.Add(2 * time.Minute)
		}
		h.mustBeSmall()
		if first < batches-2 {
			t.Errorf("only %d of %d batches were stored", first, batches)
		}
		states, _ := h.x.Stat(ctx)
		if states[0].Keys < hoardBytes/2/400 || states[0].Counters.Evicted == 0 {
			t.Errorf("%d keys are left, %d were evicted", states[0].Keys, states[0].Counters.Evicted)
		}
		if there, err := h.x.Exists(ctx, one, batchOf(batches-1, size, 64)); err != nil || !there[0] || !there[size-1] {
			t.Error("the last batch is not there", err)
		}
	})
	t.Run("long keys", func(t *testing.T) {
		h := newHoard(t, hoardBytes/2)
		h.initialize(one, 0)
		for n := range 35 {
			h.store(one, 0, batchOf(n, 128, maxKeyBytes), true)
		}
		h.mustBeSmall()
	})
	t.Run("reserved pages", func(t *testing.T) {
		h := newHoard(t, hoardBytes)
		h.initialize(one, 0)
		refused := false
		for n := range 100 {
			refused = h.store(one, 0, batchOf(n, 4096, 32), false) < 4096 || refused
		}
		h.mustBeSmall()
		if !refused {
			t.Error("all pages were given out")
		}
		// Reservations end, and then others get the memory.
		h.clock = h.clock.Add(5 * time.Minute)
		other := pageservice.Space{Namespace: "other", Set: "vllm"}
		h.initialize(other, 0)
		for n := range 10 {
			if got := h.store(other, 0, batchOf(n, 1024, 64), true); got != 1024 {
				t.Fatalf("batch %d: another namespace gets %d pages", n, got)
			}
		}
		h.mustBeSmall()
	})
	t.Run("ranks", func(t *testing.T) {
		h := newHoard(t, hoardBytes)
		h.initialize(one, 0)
		for n := range 4 {
			h.store(one, 0, batchOf(n, 4096, 8), true)
		}
		var err error
		for rank := 1; rank < 20 && err == nil; rank++ {
			if _, err = h.x.Initialize(ctx, one, rank, pageservice.RankOptions{NumPages: pageservice.MaxPages}); err == nil {
				h.store(one, rank, batchOf(0, 4096, 8)[4000:], false)
				h.store(one, rank, []string{fmt.Sprint("last", rank)}, true)
			}
		}
		h.mustBeSmall()
	})
	t.Run("sets of keys", func(t *testing.T) {
		h := newHoard(t, 4<<20)
		var err error
		for n := range pageservice.MaxSpaces {
			name := pageservice.Space{Namespace: fmt.Sprint("n", n), Set: "vllm"}
			if _, err = h.x.Initialize(ctx, name, 0, pageservice.RankOptions{NumPages: 1}); err != nil {
				break
			}
			h.store(name, 0, []string{"k"}, true)
		}
		if !errors.Is(err, pageservice.ErrFull) || !strings.Contains(err.Error(), "--pages-memory") {
			t.Error(err)
		}
		h.mustBeSmall()
	})
	t.Run("namespaces", func(t *testing.T) {
		h := newHoard(t, hoardBytes)
		for n := range 3 {
			name := pageservice.Space{Namespace: fmt.Sprint("n", n), Set: "vllm"}
			h.initialize(name, 0)
			if got := h.store(name, 0, batchOf(0, 4096, 64), true); got != 4096 {
				t.Errorf("namespace %d gets %d pages", n, got)
			}
			for b := 1; b < 20; b++ {
				h.store(name, 0, batchOf(b, 4096, 64), true)
			}
		}
		h.mustBeSmall()
	})
	t.Run("restart", func(t *testing.T) {
		h := newHoard(t, 256<<20)
		h.initialize(one, 0)
		for n := range 30 {
			h.store(one, 0, batchOf(n, 4096, 64), true)
		}
		count := func() int64 {
			states, err := h.x.Stat(ctx)
			if err != nil {
				t.Fatal(err)
			}
			return states[0].Keys
		}
		all := count()
		var left []int64
		for _, memoryBytes := range []int64{hoardBytes, 256 << 20, hoardBytes} {
			if err := h.x.Close(); err != nil {
				t.Fatal(err)
			}
			h.o.MemoryBytes = memoryBytes
			h.open()
			h.mustBeSmall()
			left = append(left, count())
			if got := h.store(one, 0, []string{"new"}, false); got != 0 && memoryBytes == hoardBytes {
				t.Errorf("a page was given out, but clients may still use those that were forgotten")
			}
		}
		if left[0] == 0 || left[0] >= all || left[1] != left[0] {
			t.Errorf("of %d keys, these were left after each restart: %d", all, left)
		}
		h.clock = h.clock.Add(5 * time.Minute)
		if got := h.store(one, 0, batchOf(1000, 256, 64), true); got != 256 {
			t.Errorf("%d of 256 new keys got a page", got)
		}
	})
}
