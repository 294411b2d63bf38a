package cache_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

// shared returns the name of a cache, which is removed at the test's end.
func shared(t testing.TB) string {
	name := "test-" + wire.NewUUID().String()
	t.Cleanup(func() { os.Remove(object(name)) })
	return name
}

func object(name string) string {
	return filepath.Join(shm.Dir, memory.NamePrefix+"cache-"+name)
}

func gone(t testing.TB, name string) {
	t.Helper()
	if _, err := os.Stat(object(name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the last Close left the cache in %s: %v", shm.Dir, err)
	}
}

func TestSuiteShared(t *testing.T) {
	dirs := perDir{}
	storesuite.Run(t, storesuite.Subject{Durable: true, Brief: !atNight(), Open: func(t testing.TB, dir string, o storesuite.Options) kv.Store {
		h := fnv.New64()
		fmt.Fprint(h, dir, o)
		c := options(o)
		c.SharedName = fmt.Sprintf("suite-%x", h.Sum64())
		t.Cleanup(func() { os.Remove(object(c.SharedName)) })
		return mustNew(t, newShelf(o.Layout, dirs.of(dir, o.Namespace)), c)
	}})
}

// two returns two caches that share one memory. Each has a next store of its own, over
// the same things.
func two(t *testing.T, o cache.Options) (things *things, nexts [2]*shelf, stores [2]*cache.Store) {
	o.SharedName = shared(t)
	things = newThings()
	for i := range stores {
		nexts[i] = newShelf(small, things)
		stores[i] = cached(t, nexts[i], 16, o)
	}
	t.Cleanup(func() {
		for _, s := range stores {
			if err := s.Close(); err != nil {
				t.Errorf("close: %v", err)
			}
		}
		gone(t, o.SharedName)
	})
	return things, nexts, stores
}

func TestOthersBlocksAreThere(t *testing.T) {
	things, nexts, stores := two(t, cache.Options{})
	things.fill(small, keys(0, 4)...)
	load(t, stores[0], keys(0, 4)...)
	load(t, stores[1], keys(0, 4)...)
	save(t, stores[0], keys(10, 4)...)
	load(t, stores[1], keys(10, 4)...)
	if n := nexts[1].batches; n != 0 {
		t.Errorf("next was asked %d times for what another process has in memory", n)
	}
}

// A process that finds a block which another one has yet to write waits for that in Flush.
func TestFlushWaitsForOthers(t *testing.T) {
	things, nexts, stores := two(t, cache.Options{})
	g := newGate()
	nexts[0].before(func(_ kv.Shard, save bool) error {
		if save {
			g.pass()
		}
		return nil
	})
	save(t, stores[0], key(1))
	within(t, "next is asked to save", g.reached)
	save(t, stores[1], key(1))
	if _, n := nexts[1].asked(key(1), 0); n != 0 {
		t.Error("both write it")
	}
	flushed := make(chan error, 1)
	go func() { flushed <- stores[1].Flush(bounded(t)) }()
	select {
	case err := <-flushed:
		t.Fatalf("flushed before next had it: %v", err)
	default:
	}
	close(g.open)
	if err := <-flushed; err != nil || !things.has(key(1), small) {
		t.Errorf("flush: %v, next has it: %v", err, things.has(key(1), small))
	}

	nexts[0].before(func(kv.Shard, bool) error { return errors.New("disk on fire") })
	save(t, stores[0], key(2))
	if err := stores[0].Flush(bounded(t)); err == nil {
		t.Error("Flush succeeded though next failed")
	}
	save(t, stores[1], key(2))
	flush(t, stores[1])
	if !things.has(key(2), small) {
		t.Error("what one could not write and another one saved again is not in next")
	}
}

// Flush fails when it cannot tell what other processes have yet to write.
func TestFlushCannotTell(t *testing.T) {
	name := shared(t)
	s := cached(t, newShelf(small, newThings()), 8, cache.Options{SharedName: name, Timeout: 50 * time.Millisecond})
	stopped, err := os.OpenFile(object(name), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer stopped.Close()
	lock := unix.Flock_t{Type: unix.F_WRLCK, Len: 1} // the table's
	if err := unix.FcntlFlock(stopped.Fd(), unix.F_OFD_SETLKW, &lock); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(bounded(t)); !errors.Is(err, kv.ErrTimeout) {
		t.Errorf("flush: %v", err)
	}
	lock.Type = unix.F_UNLCK
	if err := unix.FcntlFlock(stopped.Fd(), unix.F_OFD_SETLK, &lock); err != nil {
		t.Fatal(err)
	}
	flush(t, s)
}

// A process does not wait for a block that another one is loading or saving.
func TestOthersAreAtIt(t *testing.T) {
	things, nexts, stores := two(t, cache.Options{})
	things.fill(small, key(1))
	g := newGate()
	nexts[0].before(func(_ kv.Shard, save bool) error {
		if !save {
			g.pass()
		}
		return nil
	})
	slow := begin(t, stores[0].Load, blocks(small, key(1)))
	within(t, "the one asks next", g.reached)
	load(t, stores[1], key(1))
	save(t, stores[1], key(1))

	if err := begin(t, stores[0].Save, filled(blocks(small, key(2)))[:2]).Wait(bounded(t)); err != nil {
		t.Fatal(err)
	}
	for _, shards := range [][]kv.Shard{blocks(small, key(2))[:1], blocks(small, key(2))[1:]} {
		if err := begin(t, stores[1].Save, filled(shards)).Wait(bounded(t)); err != nil {
			t.Fatal(err)
		}
	}
	if !things.has(key(2), small) {
		t.Error("a block that two saved, the one half, the other whole, is not there")
	}
	load(t, stores[1], key(2))
	close(g.open)
	if err := slow.Wait(bounded(t)); err != nil {
		t.Error(err)
	}
	load(t, stores[0], key(1), key(2))
}

// A pin keeps the other process from evicting, too.
func TestPinsHoldAgainstOthers(t *testing.T) {
	things, nexts, stores := two(t, cache.Options{})
	things.fill(small, keys(0, 100)...)
	load(t, stores[0], key(0))
	g := newGate()
	nexts[0].before(func(kv.Shard, bool) error { g.pass(); return nil })
	// The batch is held by another block, and block 0 with it.
	slow := begin(t, stores[0].Load, blocks(small, key(0), key(1)))
	within(t, "next is asked", g.reached)
	for n := range 90 {
		load(t, stores[1], key(2+n))
	}
	load(t, stores[1], key(0))
	if n, _ := nexts[1].asked(key(0), 0); n != 0 {
		t.Error("another process evicted a block that is being read")
	}
	close(g.open)
	if err := slow.Wait(bounded(t)); err != nil {
		t.Error(err)
	}
}

func TestShareWithAnotherLayout(t *testing.T) {
	name := shared(t)
	cached(t, newShelf(small, newThings()), 16, cache.Options{SharedName: name})
	other := kv.Layout{BlockBytes: 4096, ShardBytes: 4096}
	if _, err := cache.New(newShelf(other, newThings()), cache.Options{SharedName: name}); err == nil || !contains(err, "choose another shared name") {
		t.Errorf("another layout: %v", err)
	}
	if _, err := cache.New(newShelf(small, newThings()), cache.Options{SharedName: name, Namespace: kv.Fingerprint{9}}); err == nil || !contains(err, "namespace") {
		t.Errorf("another namespace: %v", err)
	}
}

// When the memory is shrunk, everything is passed on to next, and no wrong bytes are
// loaded.
func TestShrunkenObject(t *testing.T) {
	for _, left := range []int64{0, 5000, 3 << 20} { // nothing, half a table, half the blocks
		name := shared(t)
		shelf := newShelf(small, newThings())
		l := kv.Layout{BlockBytes: 3 << 18, ShardBytes: 1 << 18}
		shelf.layout = l
		s := mustNew(t, shelf, cache.Options{SharedName: name, CapacityBytes: 8 * l.BlockBytes})
		save(t, s, keys(0, 4)...)
		flush(t, s)
		load(t, s, keys(0, 4)...)
		if err := os.Truncate(object(name), left); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			load(t, s, keys(0, 4)...)
			save(t, s, keys(4, 2)...)
			flush(t, s)
			load(t, s, keys(0, 6)...)
		}
		found := make([]bool, 7)
		if err := s.Lookup(bounded(t), keys(0, 7), found); err != nil || !found[5] || found[6] {
			t.Errorf("%v, %v", found, err)
		}
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
		gone(t, name)
	}
}

// The same holds when the memory is shrunk while loads and saves are under way.
func TestShrunkenUnderWay(t *testing.T) {
	name := shared(t)
	l := kv.Layout{BlockBytes: 3 << 18, ShardBytes: 1 << 18}
	shelf := newShelf(l, newThings())
	shelf.things.fill(l, keys(0, 12)...)
	s := mustNew(t, shelf, cache.Options{SharedName: name, CapacityBytes: 8 * l.BlockBytes})
	defer s.Close()
	load(t, s, keys(0, 6)...)
	var tasks []*kv.Task
	var all [][]kv.Shard
	for n := range 8 {
		shards := blocks(l, keys(n, 5)...)
		all = append(all, shards)
		tasks = append(tasks, begin(t, s.Load, shards))
		if n == 4 {
			if err := os.Truncate(object(name), 3<<20); err != nil {
				t.Fatal(err)
			}
		}
	}
	for n, task := range tasks {
		if err := task.Wait(bounded(t)); err != nil {
			t.Errorf("load: %v", err)
		}
		for _, shard := range all[n] {
			if !right(shard) {
				t.Fatalf("wrong bytes in block %s", shard.Key)
			}
		}
	}
}
