package segment

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

func remove(t testing.TB, s *Store, keys ...kv.Key) {
	t.Helper()
	if err := s.Delete(context.Background(), keys); err != nil {
		t.Fatalf("deleting: %v", err)
	}
}

// gone checks that none of these blocks is there, and that their loss does not count as
// damage.
func gone(t testing.TB, s *Store, keys ...kv.Key) {
	t.Helper()
	for i, f := range found(t, s, keys...) {
		if f {
			t.Fatalf("block %d of %d is found, and was deleted", i, len(keys))
		}
	}
	for i, there := range load(t, s, keys...) {
		if there {
			t.Fatalf("block %d of %d is loaded, and was deleted", i, len(keys))
		}
	}
}

// listed returns what Keys yields, and checks that it yields each key once.
func listed(t testing.TB, s *Store) map[kv.Key]bool {
	t.Helper()
	all := map[kv.Key]bool{}
	for key, err := range s.Keys(context.Background()) {
		if err != nil {
			t.Fatalf("listing: %v", err)
		}
		if all[key] {
			t.Fatalf("block %s is listed twice", key)
		}
		all[key] = true
	}
	return all
}

func TestDelete(t *testing.T) {
	s := open(t, options(t.TempDir(), small, 5, 20))
	save(t, s, keysOf(0, 30)...)
	remove(t, s)
	remove(t, s, append(keysOf(10, 10), keysOf(500, 5)...)...)
	remove(t, s, keysOf(10, 3)...)
	gone(t, s, keysOf(10, 10)...)
	loads(t, s, keysOf(0, 10)...)
	loads(t, s, keysOf(20, 10)...)
	if stats := s.Stats(); stats.Blocks != 20 || stats.CorruptBlocks != 0 || stats.EvictedBlocks != 0 {
		t.Errorf("%d blocks, %d damaged, %d evicted", stats.Blocks, stats.CorruptBlocks, stats.EvictedBlocks)
	}
	save(t, s, keysOf(10, 2)...)
	loads(t, s, keysOf(10, 2)...)
	gone(t, s, keysOf(12, 8)...)
	if all := listed(t, s); len(all) != 22 || !all[keyOf(0)] || !all[keyOf(11)] || all[keyOf(12)] {
		t.Errorf("%d blocks are listed", len(all))
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := s.Delete(ctx, keysOf(0, 1)); err != context.Canceled {
		t.Errorf("with a context that has ended: %v", err)
	}
	for key, err := range s.Keys(ctx) {
		if err != context.Canceled || key != (kv.Key{}) {
			t.Errorf("listing with a context that has ended: %s, %v", key, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(context.Background(), keysOf(0, 1)); err != kv.ErrClosed {
		t.Errorf("after Close: %v", err)
	}
	for _, err := range s.Keys(context.Background()) {
		if err != kv.ErrClosed {
			t.Errorf("listing after Close: %v", err)
		}
	}
}

// afterKill opens what a kill would leave now.
func afterKill(t testing.TB, o Options) *Store {
	t.Helper()
	o.Dir = snapshot(t, o.Dir)
	o.Engine = nil
	return open(t, o)
}

// A block is deleted in a segment that has no index yet, in the part of one that was
// taken over from the last process, and in one that has been sealed.
func TestDeleteOutlivesAKill(t *testing.T) {
	o := options(t.TempDir(), small, 6, 2*indexSlots)
	s := open(t, o)
	save(t, s, keysOf(0, indexSlots+20)...)
	s = reopen(t, s, o)
	save(t, s, keysOf(indexSlots+20, 2*indexSlots)...)
	until(t, "the first segment is sealed", func() bool { return sealed(s) == 1 })
	var deleted []kv.Key
	for _, n := range []int{3, indexSlots + 5, 2*indexSlots - 3, 2*indexSlots + 10} {
		deleted = append(deleted, keyOf(n))
		remove(t, s, keyOf(n))
		next := afterKill(t, o)
		gone(t, next, deleted...)
		loads(t, next, keysOf(0, 3)...)
	}
	gone(t, reopen(t, s, o), deleted...)
}

// Evicted blocks stay on the disk until their segment is written to again, which takes
// long while a reader pins it. The next process does not find one that was deleted by
// then, nor one that was saved again in between and then deleted.
func TestDeleteOfWhatWasEvicted(t *testing.T) {
	const slots = 4
	m := newInterceptor()
	o := options(t.TempDir(), small, 5, slots)
	o.Engine, o.CarryFraction = m, -1
	s := open(t, o)
	old := keysOf(0, slots)
	save(t, s, old...)
	for _, freed := range []bool{false, true} {
		var held []func()
		m.intercept(func(_ transfer.Op, do func()) { held = append(held, do) })
		task, err := s.Load(context.Background(), shardsOf(small, old[0]))
		if err != nil {
			t.Fatal(err)
		}
		m.intercept(nil)
		release := sync.OnceFunc(func() {
			for _, do := range held {
				do()
			}
			if err := task.Wait(context.Background()); err != nil {
				t.Error(err)
			}
		})
		t.Cleanup(release)
		for n := 100; slices.Contains(found(t, s, old...), true); n++ {
			save(t, s, keyOf(n))
		}
		waitReady(t, s)
		if !found(t, afterKill(t, o), old...)[0] {
			t.Fatal("nothing that was evicted is still on the disk")
		}
		if freed {
			release()
		}
		save(t, s, old[1])
		remove(t, s, old...)
		gone(t, s, old...)
		gone(t, afterKill(t, o), old...)
		if !freed {
			release()
			until(t, "all segments were used again", func() bool {
				save(t, s, keysOf(1000, 5*slots)...)
				remove(t, s, keysOf(1000, 5*slots)...)
				return idle(s)
			})
			save(t, s, old...)
		}
	}
}

// Hot blocks are carried from segment to segment and deleted at any moment. After a kill
// the next process finds none of them, wherever they have been.
func TestDeleteWhileCarrying(t *testing.T) {
	const slots = 16
	rounds := 40
	if testing.Short() {
		rounds = 8
	}
	m := newInterceptor()
	o := options(t.TempDir(), small, 5, slots)
	o.Engine, o.CarryFraction = m, maxCarry
	s := open(t, o)
	m.intercept(func(_ transfer.Op, do func()) { // the keeper takes its time
		time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
		do()
	})
	next := 10000
	for round := range rounds {
		hot := keysOf(round*10, 6)
		save(t, s, hot...)
		for range slots + rand.IntN(3*slots) {
			save(t, s, keyOf(next))
			next++
			load(t, s, hot...)
		}
		var writer sync.WaitGroup
		writer.Go(func() {
			for i := range slots {
				save(t, s, keyOf(next+i))
			}
		})
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
		remove(t, s, hot...)
		gone(t, afterKill(t, o), hot...)
		gone(t, s, hot...)
		writer.Wait()
		next += slots
		waitReady(t, s)
		gone(t, s, hot...)
		gone(t, afterKill(t, o), hot...)
	}
}

// A crash between the carrying of a block and the end of its old generation leaves two
// copies. Delete removes both.
func TestDeleteOfTwoCopies(t *testing.T) {
	const slots = 8
	o := options(t.TempDir(), small, 4, slots)
	s := open(t, o)
	for i := range slots {
		save(t, s, keyOf(i))
	}
	until(t, "the segment is sealed", func() bool { return sealed(s) == 1 })
	before := snapshot(t, o.Dir)
	loads(t, s, keyOf(0))
	for i := range 2*slots + 1 {
		save(t, s, keyOf(100+i))
		waitReady(t, s)
	}
	loads(t, s, keyOf(0))
	carried := s.segmentWith(t, keyOf(0))
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// The segment that was recycled is as it was before.
	old := segmentName(0)
	if carried.number == 0 {
		t.Fatal("the block was not carried")
	}
	raw, err := os.ReadFile(before + "/" + old)
	if err != nil {
		t.Fatal(err)
	}
	put(t, o.Dir+"/"+old, 0, raw)
	o.CapacityBytes = options(o.Dir, small, 6, slots).CapacityBytes // nothing is recycled
	s = open(t, o)
	loads(t, s, keysOf(0, slots)...)
	remove(t, s, keyOf(0))
	gone(t, s, keyOf(0))
	next := afterKill(t, o)
	gone(t, next, keyOf(0))
	loads(t, next, keysOf(1, slots-1)...)
}

// A Load that has found a block returns its bytes or a miss, and never damage, when the
// block is deleted meanwhile.
func TestDeleteWhileLoading(t *testing.T) {
	m := newInterceptor()
	o := options(t.TempDir(), small, 5, 8)
	o.Engine = m
	s := open(t, o)
	save(t, s, keyOf(0))
	for _, heads := range []bool{true, false} { // which reads wait for the Delete
		var held []func()
		m.intercept(func(op transfer.Op, do func()) {
			if isHead := (op.Offset-s.geo.headAt(0))%s.geo.strideBytes == 0; isHead == heads {
				held = append(held, do)
				return
			}
			do()
		})
		task, err := s.Load(context.Background(), shardsOf(small, keyOf(0)))
		if err != nil {
			t.Fatal(err)
		}
		m.intercept(nil)
		time.Sleep(10 * time.Millisecond) // let the other reads finish
		remove(t, s, keyOf(0))
		for _, do := range held {
			do()
		}
		if err := task.Wait(context.Background()); heads && err != kv.ErrMiss || !heads && err != nil {
			t.Errorf("heads last: %t: %v", heads, err)
		}
		save(t, s, keyOf(0))
		loads(t, s, keyOf(0))
	}
	if n := s.Stats().CorruptBlocks; n != 0 {
		t.Errorf("%d blocks are damaged", n)
	}
}

// On a device that does not answer, Delete ends after the timeout. The segment is not
// used again before the device has answered.
func TestDeleteOnHungDevice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := options(t.TempDir(), small, 5, 4)
		o.Timeout = time.Second
		s := open(t, o)
		save(t, s, keysOf(0, 4)...)
		synctest.Wait()
		release := make(chan struct{})
		var hung sync.WaitGroup
		for range callers {
			hung.Add(1)
			go func() {
				_ = s.call(s.segments[0], func() error { <-release; return nil })
				hung.Done()
			}()
		}
		synctest.Wait()
		begun := time.Now()
		err := s.Delete(context.Background(), keysOf(0, 4))
		if took := time.Since(begun); !errors.Is(err, kv.ErrTimeout) || took > 2*o.Timeout {
			t.Errorf("after %v: %v", took, err)
		}
		close(release)
		hung.Wait()
		synctest.Wait()
		remove(t, s, keysOf(0, 4)...)
		gone(t, s, keysOf(0, 4)...)
	})
}

// Many goroutines save, load, list and delete at once, with recycling. What its only
// writer has deleted is not there, and nothing wrong is loaded.
func TestDeleteAmongOthers(t *testing.T) {
	rounds := 400
	if testing.Short() {
		rounds = 100
	}
	o := options(t.TempDir(), small, 6, 12)
	s := open(t, o)
	shared := keysOf(100000, 20)
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 1))
			for range rounds {
				own := keysOf(w*1000+rng.IntN(30), 1+rng.IntN(4))
				save(t, s, own...)
				load(t, s, own...)
				some := shared[rng.IntN(len(shared)):]
				save(t, s, some[0])
				load(t, s, some...)
				remove(t, s, append(own, some...)...)
				gone(t, s, own...)
			}
		})
	}
	all.Go(func() {
		for range rounds {
			listed(t, s)
		}
	})
	all.Wait()
	settle(t, s)
	remove(t, s, shared...)
	if f := found(t, afterKill(t, o), shared...); f[0] {
		t.Error("a deleted block is found after a kill")
	}
}

// Keys yields every block that is there all the time, wherever it is carried meanwhile.
func TestKeysWhileCarrying(t *testing.T) {
	const slots = 16
	s := open(t, options(t.TempDir(), small, 5, slots))
	hot := keysOf(0, 4)
	save(t, s, hot...)
	stop := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() {
		for n := 1000; ; n++ {
			select {
			case <-stop:
				return
			default:
			}
			save(t, s, keyOf(n))
			load(t, s, hot...)
			waitReady(t, s)
		}
	})
	for s.Stats().EvictedBlocks < 20*slots {
		all := listed(t, s)
		for i, key := range hot {
			if !all[key] && found(t, s, key)[0] {
				t.Fatalf("block %d is there and was not listed", i)
			}
		}
	}
	close(stop)
	writer.Wait()
}
