package cache_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A saved block is found before next has any of it, and Flush waits for next.
func TestWriteBehind(t *testing.T) {
	shelf := newShelf(small, newThings())
	g := holdSaves(shelf)
	s := cached(t, shelf, 16, cache.Options{})
	save(t, s, keys(0, 8)...)
	load(t, s, keys(0, 8)...)
	found := make([]bool, 9)
	if err := s.Lookup(bounded(t), keys(0, 9), found); err != nil || !found[7] || found[8] {
		t.Errorf("%v, %v", found, err)
	}
	if n, err := s.LookupPrefix(bounded(t), keys(0, 9)); err != nil || n != 8 {
		t.Errorf("a prefix of %d, %v", n, err)
	}
	flushed := make(chan error, 1)
	go func() { flushed <- s.Flush(bounded(t)) }()
	within(t, "next is asked to save", g.reached)
	select {
	case err := <-flushed:
		t.Fatalf("flushed before next had it: %v", err)
	default:
	}
	close(g.open)
	if err := <-flushed; err != nil {
		t.Fatal(err)
	}
	for _, k := range keys(0, 8) {
		if !shelf.things.has(k, small) {
			t.Errorf("block %s was flushed and is not in next", k)
		}
	}
	save(t, s, keys(0, 8)...)
	flush(t, s)
	if _, n := shelf.asked(key(0), 0); n != 1 {
		t.Errorf("a block that was there was saved %d times", n)
	}
}

// While next is slow, saves wait for space and go on when there is some. Loads do not
// wait.
func TestBackpressure(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, key(1000))
	g := holdSaves(shelf)
	s := cached(t, shelf, 8, cache.Options{})
	task := begin(t, s.Save, filled(blocks(small, keys(0, 50)...)))
	eventually(t, "three quarters of the memory are dirty", func() bool { return s.Stats().SavedShards == 6*3 })
	if _, settled := task.Result(6 * 3); settled {
		t.Error("a save did not wait for space")
	}
	load(t, s, key(1000))
	load(t, s, keys(0, 6)...)
	close(g.open)
	if err := task.Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	flush(t, s)
	for _, k := range keys(0, 50) {
		if !shelf.things.has(k, small) {
			t.Fatalf("block %s is not in next", k)
		}
	}
}

// When next takes nothing for the store's timeout, blocks without space are not stored.
// They fail together after one timeout, not after one each.
func TestFull(t *testing.T) {
	shelf := newShelf(small, newThings())
	g := holdSaves(shelf)
	s := cached(t, shelf, 8, cache.Options{Timeout: 200 * time.Millisecond})
	shards := filled(blocks(small, keys(0, 40)...))
	for i, err := range begin(t, s.Save, shards).All() {
		if want := i >= 6*3; want != errors.Is(err, kv.ErrFull) || !want && err != nil {
			t.Fatalf("shard %d: %v", i, err)
		}
	}
	if err := s.Flush(bounded(t)); !errors.Is(err, kv.ErrTimeout) {
		t.Errorf("flush: %v", err)
	}
	close(g.open)
	flush(t, s)
	save(t, s, keys(6, 6)...)
	load(t, s, keys(0, 12)...)
}

// A batch that waits for space lets those pass that need none, and keeps its turn for space.
func TestWaitingForSpaceHoldsUpNobody(t *testing.T) {
	shelf := newShelf(small, newThings())
	g := holdSaves(shelf)
	s := cached(t, shelf, 8, cache.Options{})
	defer g.release()
	save(t, s, keys(0, 6)...)
	waits := begin(t, s.Save, filled(blocks(small, keys(6, 1)...)))
	behind := begin(t, s.Save, filled(blocks(small, keys(7, 1)...)))
	save(t, s, keys(0, 6)...) // they exist
	load(t, s, keys(0, 6)...)
	for n, task := range []*kv.Task{waits, behind} {
		select {
		case <-task.Done():
			t.Errorf("batch %d has found space: %v", n, task.Err())
		default:
		}
	}
	cancelled, err := s.Save(t.Context(), filled(blocks(small, keys(8, 1)...)))
	if err != nil {
		t.Fatal(err)
	}
	cancelled.Cancel()
	if err := cancelled.Wait(bounded(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("a batch that was cancelled: %v", err)
	}
	g.release()
	for _, task := range []*kv.Task{waits, behind} {
		if err := task.Wait(bounded(t)); err != nil {
			t.Error(err)
		}
	}
	load(t, s, keys(0, 8)...)
}

// Batches that find no space wait at the same time, and not one after the other.
func TestFullForAll(t *testing.T) {
	shelf := newShelf(small, newThings())
	g := holdSaves(shelf)
	s := cached(t, shelf, 8, cache.Options{Timeout: 200 * time.Millisecond})
	defer close(g.open)
	ctx := bounded(t)
	var tasks []*kv.Task
	for _, k := range keys(0, 500) {
		tasks = append(tasks, begin(t, s.Save, filled(blocks(small, k))))
	}
	for n, task := range tasks {
		if err := task.Wait(ctx); n < 6 && err != nil || n >= 6 && !errors.Is(err, kv.ErrFull) {
			t.Fatalf("batch %d of %d: %v", n, len(tasks), err)
		}
	}
}

// Blocks that are saved layer by layer and have no space go directly to next, whole.
func TestLayersOfMoreBlocksThanRoom(t *testing.T) {
	shelf := newShelf(small, newThings())
	s := cached(t, shelf, 8, cache.Options{})
	all := keys(0, 30)
	for i := range small.Shards() {
		var layer []kv.Shard
		for _, k := range all {
			layer = append(layer, filled(blocks(small, k))[i])
		}
		if err := begin(t, s.Save, layer).Wait(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
	flush(t, s)
	for _, k := range all {
		if !shelf.things.has(k, small) {
			t.Fatalf("block %s is not in next", k)
		}
	}
	load(t, s, all...)
}

// A block that next refuses is counted, and Flush reports it once. It can be loaded
// until its memory is needed, and saved again.
func TestNextTakesNothing(t *testing.T) {
	shelf := newShelf(small, newThings())
	full := errors.New("no space left")
	shelf.before(func(s kv.Shard, save bool) error {
		if save && s.Key != key(0) {
			return full
		}
		return nil
	})
	s := cached(t, shelf, 8, cache.Options{})
	save(t, s, keys(0, 3)...)
	if err := s.Flush(bounded(t)); !errors.Is(err, full) {
		t.Fatalf("flush: %v", err)
	}
	flush(t, s)
	if n := s.Stats().DroppedBlocks; n != 2 {
		t.Errorf("%d blocks dropped, 2 were", n)
	}
	load(t, s, keys(0, 3)...)
	shelf.before(nil)
	save(t, s, key(1))
	flush(t, s)
	if !shelf.things.has(key(1), small) {
		t.Error("a block that was saved again is not in next")
	}
	shelf.things.fill(small, keys(10, 8)...)
	load(t, s, keys(10, 8)...)
	if err := begin(t, s.Load, blocks(small, key(2))).Wait(bounded(t)); !errors.Is(err, kv.ErrMiss) {
		t.Errorf("a block that neither the cache nor next has: %v", err)
	}
}

// Memory that next's storage may still read is not reused.
func TestAbandonedWrite(t *testing.T) {
	shelf := newShelf(small, newThings())
	var mu sync.Mutex
	var late []kv.Shard
	shelf.before(func(s kv.Shard, save bool) error {
		if save && s.Key == key(0) {
			mu.Lock()
			late = append(late, s)
			mu.Unlock()
			return kv.Abandoned("ring")
		}
		return nil
	})
	s := cached(t, shelf, 4, cache.Options{})
	save(t, s, key(0))
	if err := s.Flush(bounded(t)); !errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("flush: %v", err)
	}
	for i := range 20 {
		save(t, s, key(i+1))
	}
	for _, shard := range late {
		if !right(shard) {
			t.Fatal("the memory was used for another block")
		}
	}
	load(t, s, key(0))
}

// The memory of blocks whose shards stop coming is freed.
func TestUnfinishedBlocksGo(t *testing.T) {
	shelf := newShelf(small, newThings())
	s := cached(t, shelf, 8, cache.Options{Timeout: 50 * time.Millisecond})
	for _, k := range keys(0, 6) {
		if err := begin(t, s.Save, filled(blocks(small, k))[:2]).Wait(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "they are dropped", func() bool { return s.Stats().DroppedBlocks == 6 })
	save(t, s, keys(10, 6)...)
	load(t, s, keys(10, 6)...)
	if err := begin(t, s.Load, blocks(small, key(0))).Wait(bounded(t)); !errors.Is(err, kv.ErrMiss) {
		t.Errorf("part of a block: %v", err)
	}
}

// A block that is saved while it is being loaded is there afterwards, whatever next
// returns.
func TestSaveWhileLoading(t *testing.T) {
	shelf := newShelf(small, newThings())
	g := newGate()
	shelf.before(func(_ kv.Shard, save bool) error {
		if !save {
			g.pass()
		}
		return nil
	})
	s := cached(t, shelf, 8, cache.Options{})
	loading := begin(t, s.Load, blocks(small, key(1)))
	within(t, "next is asked", g.reached)
	saving := begin(t, s.Save, filled(blocks(small, key(1))))
	close(g.open)
	if err := loading.Wait(bounded(t)); !errors.Is(err, kv.ErrMiss) {
		t.Errorf("load: %v", err)
	}
	if err := saving.Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	load(t, s, key(1))
}

// Close writes to next what was saved, and gives up when that takes too long.
func TestCloseDrains(t *testing.T) {
	shelf := newShelf(small, newThings())
	s := cached(t, shelf, 64, cache.Options{})
	save(t, s, keys(0, 40)...)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	for _, k := range keys(0, 40) {
		if !shelf.things.has(k, small) {
			t.Fatalf("block %s is not in next", k)
		}
	}

	stuck := newShelf(small, newThings())
	g := newGate()
	stuck.before(func(kv.Shard, bool) error { g.pass(); return nil })
	s = cached(t, stuck, 400, cache.Options{Timeout: 100 * time.Millisecond})
	save(t, s, keys(0, 280)...)
	within(t, "one writer is held", g.reached)
	within(t, "and the other", g.reached)
	closed := make(chan error)
	go func() { closed <- s.Close() }()
	eventually(t, "what is not begun is given up", func() bool { return s.Stats().DroppedBlocks >= 280-2*32 })
	close(g.open)
	if err := <-closed; !errors.Is(err, kv.ErrTimeout) {
		t.Errorf("close: %v", err)
	}
}

// Lookups in memory do not call next and do not allocate.
func TestLookupTakesNoMemory(t *testing.T) {
	shelf := newShelf(small, newThings())
	s := cached(t, shelf, 1024, cache.Options{})
	all, found := keys(0, 512), make([]bool, 512)
	save(t, s, all...)
	flush(t, s)
	allocs := testing.AllocsPerRun(20, func() {
		if err := s.Lookup(t.Context(), all, found); err != nil || !found[511] {
			t.Fatal(err)
		}
	})
	if shelf.lookups != 0 {
		t.Errorf("next was asked for %d keys", shelf.lookups)
	}
	if !raceEnabled && allocs > 0 {
		t.Errorf("%v allocations", allocs)
	}
	if n, err := s.LookupPrefix(t.Context(), append(keys(0, 5), keys(2000, 50)...)); n != 5 || err != nil {
		t.Errorf("%d, %v", n, err)
	}
	if shelf.lookups != 50 {
		t.Errorf("next was asked for %d keys", shelf.lookups)
	}
}

func TestOptionsThatCannotBe(t *testing.T) {
	for _, c := range []struct {
		name string
		o    cache.Options
		says string
	}{
		{"too small", cache.Options{CapacityBytes: 3 * 4096}, "make it 16384 or more"},
		{"too large", cache.Options{CapacityBytes: 1 << 41}, "make it smaller"},
		{"too large to be shared", cache.Options{CapacityBytes: 1 << 41, SharedName: shared(t)}, "/dev/shm has"},
		{"policy", cache.Options{Policy: "fifo"}, "there are lru and aged"},
		{"checksums", cache.Options{Checksums: "maybe"}, "auto, require and off"},
		{"name", cache.Options{SharedName: "a/b"}, "without a slash"},
		{"number", cache.Options{Streams: -1}, "below 0"},
	} {
		if s, err := cache.New(newShelf(small, newThings()), c.o); err == nil || !contains(err, c.says) {
			t.Errorf("%s: %v, want %q", c.name, err, c.says)
			if err == nil {
				s.Close()
			}
		}
	}
}

func contains(err error, what string) bool {
	return indexOf([]byte(fmt.Sprint(err)), []byte(what)) >= 0
}
