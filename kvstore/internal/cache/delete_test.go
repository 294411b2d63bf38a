package cache_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

func remove(t tb, s *cache.Store, all ...kv.Key) {
	t.Helper()
	if err := s.Delete(bounded(t), all); err != nil {
		t.Fatalf("delete: %v", err)
	}
}

// deleted checks that none of these blocks is found or loaded.
func deleted(t tb, s kv.Store, all ...kv.Key) {
	t.Helper()
	found := make([]bool, len(all))
	if err := s.Lookup(bounded(t), all, found); err != nil {
		t.Fatal(err)
	}
	shards := blocks(s.Layout(), all...)
	for i, err := range begin(t, s.Load, shards).All() {
		if k := i / s.Layout().Shards(); found[k] || !errors.Is(err, kv.ErrMiss) {
			t.Fatalf("block %d was deleted; found: %t, loaded: %v", k, found[k], err)
		}
	}
}

// held returns a shelf whose loads, or saves, of one block wait at the gate.
func held(t *testing.T, k kv.Key, saves bool) (next *shelf, g *gate) {
	next, g = newShelf(small, newThings()), newGate()
	next.before(func(s kv.Shard, save bool) error {
		if s.Key == k && save == saves {
			g.pass()
		}
		return nil
	})
	t.Cleanup(sync.OnceFunc(func() { g.release() }))
	return next, g
}

func TestDeleteOfWhatIsInMemoryAndInNext(t *testing.T) {
	next := newShelf(small, newThings())
	next.things.fill(small, keys(0, 6)...)
	s := cached(t, next, 20, cache.Options{})
	load(t, s, keys(0, 4)...)
	save(t, s, keys(10, 4)...)
	flush(t, s)
	remove(t, s, key(0), key(4), key(10), key(77))
	deleted(t, s, key(0), key(4), key(10))
	load(t, s, key(1), key(5), key(11))
	if next.things.has(key(0), small) || next.things.has(key(10), small) {
		t.Error("next still has it")
	}
	save(t, s, key(0))
	load(t, s, key(0))
	seen := map[kv.Key]bool{}
	for k, err := range s.Keys(bounded(t)) {
		if err != nil || seen[k] {
			t.Fatalf("%s: %v", k, err)
		}
		seen[k] = true
	}
	if len(seen) != 8 || seen[key(4)] || seen[key(10)] || !seen[key(5)] {
		t.Errorf("%d blocks are listed", len(seen))
	}
	if n := s.Stats().DroppedBlocks; n != 0 {
		t.Errorf("%d deleted blocks count as dropped", n)
	}
}

// A block that waits to be written is never written, and its loss is no error of Flush.
func TestDeleteOfWhatWaitsForNext(t *testing.T) {
	next, g := held(t, key(0), true)
	s := cached(t, next, 20, cache.Options{WaitingQueueDepth: 100})
	save(t, s, key(0))
	within(t, "next stores a block", g.reached)
	save(t, s, keys(1, 1)...)
	save(t, s, keys(2, 1)...)
	// One writer waits at the gate; the other may have taken these already.
	remove(t, s, key(1), key(2))
	deleted(t, s, key(1), key(2))
	g.release()
	flush(t, s)
	if next.things.has(key(1), small) || next.things.has(key(2), small) {
		t.Error("a deleted block was written")
	}
	load(t, s, key(0))
}

// While next stores a block Delete waits, and then deletes it there.
func TestDeleteOfWhatNextIsStoring(t *testing.T) {
	next, g := held(t, key(0), true)
	s := cached(t, next, 20, cache.Options{})
	save(t, s, key(0))
	within(t, "next stores the block", g.reached)
	done := make(chan error, 1)
	go func() { done <- s.Delete(context.Background(), keys(0, 1)) }()
	select {
	case err := <-done:
		t.Fatalf("Delete did not wait for next: %v", err)
	case <-time.After(20 * time.Millisecond):
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
	defer cancel()
	if err := s.Delete(ctx, keys(0, 1)); err != nil && err != context.DeadlineExceeded {
		t.Errorf("with a context that ends: %v", err)
	}
	g.release()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	flush(t, s)
	deleted(t, s, key(0))
	if next.things.has(key(0), small) {
		t.Error("the block was stored after it was deleted")
	}
}

// A block that next is loading reaches the batches that wait for it, and is not kept.
func TestDeleteOfWhatIsBeingLoaded(t *testing.T) {
	for _, prefetch := range []bool{false, true} {
		next, g := held(t, key(0), false)
		next.things.fill(small, keys(0, 2)...)
		s := cached(t, next, 20, cache.Options{})
		var task *kv.Task
		shards := blocks(small, key(0))
		if prefetch {
			s.Prefetch(keys(0, 1))
		} else {
			task = begin(t, s.Load, shards)
		}
		within(t, "next loads the block", g.reached)
		remove(t, s, key(0))
		next.things.fill(small, key(0)) // the read had begun before
		g.release()
		if task != nil {
			if err := task.Wait(bounded(t)); err != nil {
				t.Fatal(err)
			}
		} else {
			next.calls.Wait()
			time.Sleep(10 * time.Millisecond)
		}
		next.things.remove(key(0))
		deleted(t, s, key(0))
		save(t, s, key(0))
		flush(t, s)
		load(t, s, key(0))
	}
}

// A block that next has refused is in memory only.
func TestDeleteOfWhatNextRefused(t *testing.T) {
	next := newShelf(small, newThings())
	next.before(func(_ kv.Shard, save bool) error {
		if save {
			return errModel
		}
		return nil
	})
	s := cached(t, next, 20, cache.Options{})
	save(t, s, key(0))
	if err := s.Flush(bounded(t)); !errors.Is(err, errModel) {
		t.Fatal(err)
	}
	remove(t, s, key(0))
	deleted(t, s, key(0))
}

// In a shared cache one process deletes what another one is writing or loading.
func TestDeleteOfWhatIsAnothers(t *testing.T) {
	for _, saves := range []bool{true, false} {
		name := shared(t)
		things := newThings()
		things.fill(small, key(1))
		k, g := key(1), newGate()
		if saves {
			k = key(0)
		}
		var both [2]*cache.Store
		for i := range both {
			next := newShelf(small, things)
			next.before(func(s kv.Shard, save bool) error {
				if s.Key == k && save == saves && i == 0 {
					g.pass()
				}
				return nil
			})
			both[i] = cached(t, next, 20, cache.Options{SharedName: name})
		}
		t.Cleanup(g.release)
		var task *kv.Task
		if saves {
			save(t, both[0], k)
		} else {
			task = begin(t, both[0].Load, blocks(small, k))
		}
		within(t, "next is at the block", g.reached)
		done := make(chan error, 1)
		go func() { done <- both[1].Delete(context.Background(), []kv.Key{k}) }()
		time.Sleep(20 * time.Millisecond)
		g.release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if task != nil {
			if err := task.Wait(bounded(t)); err != nil && !errors.Is(err, kv.ErrMiss) {
				t.Fatal(err)
			}
		}
		flush(t, both[0])
		deleted(t, both[0], k)
		deleted(t, both[1], k)
		if things.has(k, small) {
			t.Error("next still has the block")
		}
	}
}

// Many goroutines save, load, prefetch, list and delete at once, with little memory.
// What its only writer has deleted is not there.
func TestDeleteAmongOthers(t *testing.T) {
	next := newShelf(small, newThings())
	next.before(func(kv.Shard, bool) error {
		if rand.IntN(10) == 0 {
			time.Sleep(time.Duration(rand.IntN(100)) * time.Microsecond)
		}
		return nil
	})
	s := cached(t, next, 24, cache.Options{})
	common := keys(100000, 10)
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range 200 {
				own := keys(w*1000+rng.IntN(20), 1+rng.IntN(3))
				save(t, s, own...)
				save(t, s, common[rng.IntN(10)])
				s.Prefetch(append(own, common...))
				for i, err := range begin(t, s.Load, blocks(small, append(own, common...)...)).All() {
					if err != nil && !errors.Is(err, kv.ErrMiss) {
						t.Errorf("shard %d: %v", i, err)
					}
				}
				remove(t, s, append(own, common[rng.IntN(10)])...)
				deleted(t, s, own...)
			}
		})
	}
	all.Go(func() {
		for range 50 {
			seen := map[kv.Key]bool{}
			for k, err := range s.Keys(bounded(t)) {
				if err != nil || seen[k] {
					t.Errorf("%s: %v; twice: %t", k, err, seen[k])
				}
				seen[k] = true
			}
		}
	})
	all.Wait()
	flush(t, s)
	remove(t, s, common...)
	deleted(t, s, common...)
}

// A Delete that gave up waiting for next, or still waits, has hidden the block already.
// The next Delete of it waits, too: the block is on its way to next.
func TestDeleteAgainOfWhatNextIsStoring(t *testing.T) {
	for _, other := range []bool{false, true} {
		things, g := newThings(), newGate()
		o := cache.Options{}
		if other {
			o.SharedName = shared(t)
		}
		next := newShelf(small, things)
		next.before(func(_ kv.Shard, save bool) error {
			if save {
				g.pass()
			}
			return nil
		})
		s := cached(t, next, 20, o)
		deleter := s
		if other {
			deleter = cached(t, newShelf(small, things), 20, o)
		}
		t.Cleanup(g.release)
		save(t, s, key(0))
		within(t, "next stores the block", g.reached)
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		if err := deleter.Delete(ctx, keys(0, 1)); err != context.DeadlineExceeded {
			t.Errorf("Delete did not wait for next: %v", err)
		}
		cancel()
		done := make(chan error, 1)
		go func() { done <- deleter.Delete(context.Background(), keys(0, 1)) }()
		select {
		case err := <-done:
			t.Errorf("another's: %t: the second Delete did not wait for next: %v", other, err)
			done <- err
		case <-time.After(20 * time.Millisecond):
		}
		g.release()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		flush(t, s)
		deleted(t, s, key(0))
		deleted(t, deleter, key(0))
	}
}
