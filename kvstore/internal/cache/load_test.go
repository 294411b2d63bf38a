package cache_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

func TestLoadFillsTheCache(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, keys(0, 10)...)
	s := cached(t, shelf, 16, cache.Options{})
	for range 3 {
		load(t, s, keys(0, 10)...)
	}
	if shelf.batches != 1 {
		t.Errorf("next was called %d times; want once for all", shelf.batches)
	}
	shelf.things.remove(key(3))
	load(t, s, keys(0, 10)...)
}

// However many loads want a block at once, next reads each of its shards once.
func TestSingleFlight(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, keys(0, 8)...)
	g := newGate()
	shelf.before(func(kv.Shard, bool) error { g.pass(); return nil })
	s := cached(t, shelf, 16, cache.Options{})
	var tasks []*kv.Task
	var all [][]kv.Shard
	for range 20 {
		shards := blocks(small, keys(0, 8)...)
		all = append(all, shards)
		tasks = append(tasks, begin(t, s.Load, shards))
	}
	within(t, "next is asked", g.reached)
	close(g.open)
	for n, task := range tasks {
		if err := task.Wait(bounded(t)); err != nil {
			t.Fatal(err)
		}
		for _, shard := range all[n] {
			if !right(shard) {
				t.Fatalf("wrong bytes in block %s", shard.Key)
			}
		}
	}
	for _, k := range keys(0, 8) {
		for i := range small.Shards() {
			if n, _ := shelf.asked(k, i); n != 1 {
				t.Errorf("shard %d of %s was read %d times", i, k, n)
			}
		}
	}
}

// A cancelled batch that fetches a block does not fail other batches that wait for it.
func TestCancelledLoadFailsNoOther(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, key(1), key(2))
	g := newGate()
	shelf.before(func(kv.Shard, bool) error { g.pass(); return nil })
	s := cached(t, shelf, 8, cache.Options{})
	first := begin(t, s.Load, blocks(small, key(1)))
	within(t, "next is asked", g.reached)
	shards := blocks(small, key(1))
	second := begin(t, s.Load, shards)
	first.Cancel()
	if err := first.Wait(bounded(t)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	close(g.open)
	if err := second.Wait(bounded(t)); err != nil || !right(shards[0]) {
		t.Errorf("the other: %v", err)
	}
}

// A fetch that no batch waits for any more is cancelled, and the next batch can load the block.
func TestCancelledLoadEndsItsFetch(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, keys(0, 4)...)
	g := newGate()
	shelf.before(func(kv.Shard, bool) error { g.pass(); return nil })
	s := cached(t, shelf, 8, cache.Options{})
	task := begin(t, s.Load, blocks(small, keys(0, 4)...))
	within(t, "next is asked", g.reached)
	task.Cancel()
	if err := task.Wait(bounded(t)); !errors.Is(err, context.Canceled) {
		t.Fatal(err)
	}
	close(g.open)
	load(t, s, keys(0, 4)...)
	if n, _ := shelf.asked(key(3), 2); n != 1 {
		t.Errorf("the last shard was read %d times", n)
	}
}

// Layers land while later ones are on their way.
func TestLayersLandOneByOne(t *testing.T) {
	shelf := newShelf(small, newThings())
	all := keys(0, 4)
	shelf.things.fill(small, all...)
	var layers [3]*gate
	for i := range layers {
		layers[i] = newGate()
	}
	shelf.before(func(s kv.Shard, _ bool) error { layers[s.Index].pass(); return nil })
	s := cached(t, shelf, 8, cache.Options{})
	var bufs [][]byte
	for range all {
		bufs = append(bufs, make([]byte, small.BlockBytes))
	}
	task := begin(t, s.Load, small.ByLayer(all, bufs))
	for i := range layers {
		close(layers[i].open)
		within(t, "a layer lands", task.Landed(i))
	}
	if err := task.Err(); err != nil {
		t.Fatal(err)
	}
}

// Layers that are loaded one after the other make a block that is in memory.
func TestLayersInSeveralLoads(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, key(1))
	s := cached(t, shelf, 8, cache.Options{})
	for i := range small.Shards() {
		if n := s.Stats().Blocks; n != 0 {
			t.Errorf("%d blocks after %d layers", n, i)
		}
		shards := blocks(small, key(1))[i : i+1]
		if err := begin(t, s.Load, shards).Wait(bounded(t)); err != nil || !right(shards[0]) {
			t.Fatal(i, err)
		}
	}
	shelf.things.remove(key(1))
	load(t, s, key(1))
	if n := s.Stats().Blocks; n != 1 {
		t.Errorf("%d blocks", n)
	}
}

// If next loses a block that is half loaded, the half is not found, and the block can be
// saved again.
func TestHalfALoadedBlock(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, key(1))
	s := cached(t, shelf, 8, cache.Options{})
	if err := begin(t, s.Load, blocks(small, key(1))[:1]).Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	shelf.things.remove(key(1))
	if err := begin(t, s.Load, blocks(small, key(1))).Wait(bounded(t)); !errors.Is(err, kv.ErrMiss) {
		t.Fatal(err)
	}
	if err := begin(t, s.Load, blocks(small, key(1))[:1]).Wait(bounded(t)); !errors.Is(err, kv.ErrMiss) {
		t.Errorf("the half that was there: %v", err)
	}
	save(t, s, key(1))
	load(t, s, key(1))
	flush(t, s)
	if !shelf.things.has(key(1), small) {
		t.Error("it has not reached next")
	}
}

// Errors of next are returned as they are. The slots are free again, and loads succeed
// as soon as next works.
func TestNextFails(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, keys(0, 8)...)
	broken := errors.New("disk on fire")
	for _, want := range []error{broken, kv.ErrTimeout, kv.ErrMiss} {
		next := newShelf(small, shelf.things)
		next.before(func(s kv.Shard, _ bool) error {
			if s.Index == 1 {
				return want
			}
			return nil
		})
		s := cached(t, next, 8, cache.Options{})
		shards := blocks(small, keys(0, 8)...)
		for i, err := range begin(t, s.Load, shards).All() {
			if bad := shards[i].Index == 1; bad != errors.Is(err, want) {
				t.Errorf("shard %d: %v", shards[i].Index, err)
			}
		}
		next.before(nil)
		load(t, s, keys(0, 8)...)
		load(t, s, keys(0, 8)...)
		// After an error only what failed is read again, after a miss the whole block.
		most := 1
		if want == kv.ErrMiss {
			most = 2
		}
		if n, _ := next.asked(key(0), 2); n > most {
			t.Errorf("after %v another shard was read %d times", want, n)
		}
	}
}

// Memory that the storage may still write into is not used again. The batches that waited
// for it get no ErrAbandoned, because their own buffers are free.
func TestAbandonedRead(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, keys(0, 8)...)
	shelf.before(func(kv.Shard, bool) error { return kv.Abandoned("ring") })
	next := &spy{shelf: shelf}
	s := cached(t, next, 4, cache.Options{})
	err := begin(t, s.Load, blocks(small, keys(0, 3)...)).Wait(bounded(t))
	if !errors.Is(err, kv.ErrTimeout) || errors.Is(err, kv.ErrAbandoned) {
		t.Errorf("%v", err)
	}
	shelf.before(nil)
	abandoned := next.seen()
	load(t, s, keys(0, 8)...)
	for _, shard := range abandoned { // the late data arrives
		content(shard.Buf, key(999), 0)
	}
	load(t, s, keys(0, 8)...)
	if n := s.Stats().CorruptBlocks; n != 0 {
		t.Errorf("%d blocks are in memory that was written to", n)
	}
}

// spy sees the batches that next gets to load.
type spy struct {
	*shelf
	mu     sync.Mutex
	shards []kv.Shard
}

func (s *spy) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	s.mu.Lock()
	s.shards = append(s.shards, shards...)
	s.mu.Unlock()
	return s.shelf.Load(ctx, shards)
}

func (s *spy) seen() []kv.Shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.shards)
}

// A block that is still being loaded or saved is not found.
func TestNotFoundBeforeItIsThere(t *testing.T) {
	shelf := newShelf(small, newThings())
	g := newGate()
	shelf.before(func(kv.Shard, bool) error { g.pass(); return nil })
	s := cached(t, shelf, 8, cache.Options{})
	task := begin(t, s.Load, blocks(small, key(0)))
	within(t, "next is asked", g.reached)
	if err := begin(t, s.Save, filled(blocks(small, key(1)))[:2]).Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	found := []bool{true, true}
	if err := s.Lookup(bounded(t), keys(0, 2), found); err != nil || found[0] || found[1] {
		t.Errorf("%v, %v", found, err)
	}
	for _, k := range keys(0, 2) {
		if n, err := s.LookupPrefix(bounded(t), []kv.Key{k}); n != 0 || err != nil {
			t.Errorf("a prefix of %d, %v", n, err)
		}
	}
	if n := s.Stats().Blocks; n != 0 {
		t.Errorf("%d blocks", n)
	}
	close(g.open)
	if err := task.Wait(bounded(t)); !errors.Is(err, kv.ErrMiss) {
		t.Error(err)
	}
}

// A block that is being read is not evicted, whatever else needs space.
func TestPinsHold(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, keys(0, 200)...)
	g := newGate()
	shelf.before(func(s kv.Shard, _ bool) error {
		if s.Key == key(0) {
			g.pass()
		}
		return nil
	})
	s := cached(t, shelf, 4, cache.Options{})
	load(t, s, key(1), key(2))
	slow := blocks(small, key(1), key(2), key(0))
	task := begin(t, s.Load, slow)
	within(t, "next is asked", g.reached)
	var others sync.WaitGroup
	for g := range 4 {
		others.Go(func() {
			for n := range 40 {
				load(t, s, key(10+n+g*40))
			}
		})
	}
	others.Wait()
	load(t, s, key(1), key(2))
	if n, _ := shelf.asked(key(1), 0); n != 1 {
		t.Errorf("a pinned block was read %d times", n)
	}
	close(g.open)
	if err := task.Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	for _, shard := range slow {
		if !right(shard) {
			t.Error("wrong bytes")
		}
	}
}

// A block that several loads wait for is not evicted before the last of them has it.
func TestPinsHoldForAllWhoWait(t *testing.T) {
	l := kv.Layout{BlockBytes: 1 << 20, ShardBytes: 1 << 20}
	shelf := newShelf(l, newThings())
	shelf.things.fill(l, keys(0, 12)...)
	g := newGate()
	shelf.before(func(s kv.Shard, _ bool) error {
		if s.Key == key(0) {
			g.pass()
		}
		return nil
	})
	s := mustNew(t, shelf, cache.Options{CapacityBytes: 4 * l.BlockBytes, Streams: 4})
	defer s.Close()
	var tasks []*kv.Task
	var all []kv.Shard
	for range 32 {
		shards := blocks(l, key(0))
		all, tasks = append(all, shards...), append(tasks, begin(t, s.Load, shards))
	}
	within(t, "next is asked", g.reached)
	var others sync.WaitGroup
	ended := make(chan struct{})
	for range 4 {
		others.Go(func() {
			buf := make([]byte, l.ShardBytes)
			for n := 0; ; n++ {
				select {
				case <-ended:
					return
				default:
				}
				if task, err := s.Load(t.Context(), []kv.Shard{{Key: key(1 + n%11), Buf: buf}}); err == nil {
					task.Wait(t.Context())
				}
			}
		})
	}
	eventually(t, "others evict", func() bool { return s.Stats().EvictedBlocks > 0 })
	close(g.open)
	for n, task := range tasks {
		if err := task.Wait(bounded(t)); err != nil || !right(all[n]) {
			t.Errorf("load %d: %v", n, err)
		}
	}
	close(ended)
	others.Wait()
	if n, _ := shelf.asked(key(0), 0); n != 1 {
		t.Errorf("it was read %d times", n)
	}
}

// The leaves of a prefix are evicted before its root.
func TestEvictsTheTailFirst(t *testing.T) {
	for _, policy := range []string{"lru", "aged"} {
		shelf := newShelf(small, newThings())
		shelf.things.fill(small, keys(0, 12)...)
		s := cached(t, shelf, 8, cache.Options{Policy: policy})
		load(t, s, keys(0, 8)...)
		load(t, s, keys(0, 8)...)
		for i := range 4 {
			load(t, s, key(8+i))
		}
		if got := s.Stats().EvictedBlocks; got != 4 {
			t.Errorf("%d blocks were evicted", got)
		}
		for _, k := range keys(0, 12) {
			shelf.things.remove(k)
		}
		load(t, s, keys(0, 4)...)
		load(t, s, keys(8, 4)...)
	}
}

// A batch of more blocks than there is memory for is still loaded.
func TestLargerThanTheCache(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, keys(0, 100)...)
	s := cached(t, shelf, 8, cache.Options{})
	for range 3 {
		load(t, s, keys(0, 100)...)
	}
}

// The same shard twice in a batch is loaded into both buffers.
func TestSameShardTwice(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, key(1))
	s := cached(t, shelf, 8, cache.Options{})
	for range 2 {
		load(t, s, key(1), key(1))
	}
	if n, _ := shelf.asked(key(1), 0); n != 1 {
		t.Errorf("read %d times", n)
	}
}

// registrar remembers the memory it was given.
type registrar struct {
	*shelf
	name string
	mem  []byte
}

func (r *registrar) Register(name string, mem []byte) error {
	r.name, r.mem = name, mem
	return nil
}

// Bytes that change in memory are noticed, and the shard is loaded from next.
func TestDamagedInMemory(t *testing.T) {
	next := &registrar{shelf: newShelf(small, newThings())}
	s := cached(t, next, 8, cache.Options{})
	save(t, s, keys(0, 4)...)
	flush(t, s)
	first := content(make([]byte, small.ShardBytes), key(2), 1)
	at := indexOf(next.mem, first)
	if at < 0 {
		t.Fatal("the block is not in the memory that was registered")
	}
	next.mem[at+100] ^= 1
	load(t, s, keys(0, 4)...)
	if n := s.Stats().CorruptBlocks; n != 1 {
		t.Errorf("%d corrupt blocks", n)
	}
	load(t, s, keys(0, 4)...)
	if n := s.Stats().CorruptBlocks; n != 1 {
		t.Errorf("%d corrupt blocks after it was read anew", n)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(shm.Dir, next.name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a closed cache left its memory: %v", err)
	}
}

func TestPrefetch(t *testing.T) {
	shelf := newShelf(small, newThings())
	shelf.things.fill(small, keys(0, 6)...)
	s := cached(t, shelf, 8, cache.Options{})
	s.Prefetch(keys(0, 20))
	eventually(t, "it is in memory", func() bool { return s.Stats().Blocks == 6 })
	for _, k := range keys(0, 6) {
		shelf.things.remove(k)
	}
	load(t, s, keys(0, 6)...)
}
