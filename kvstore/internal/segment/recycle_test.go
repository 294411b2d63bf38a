package segment

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// waitReady waits until the keeper has a segment ready.
func waitReady(t testing.TB, s *Store) {
	t.Helper()
	until(t, "a segment is ready", func() bool {
		s.mu.RLock()
		defer s.mu.RUnlock()
		return len(s.ready) > 0
	})
}

// Blocks that are loaded again and again outlive any number of recyclings. The others
// are evicted, also those that were hot once.
func TestHotBlocksAreCarriedForward(t *testing.T) {
	const segments, slots = 5, 16
	o := options(t.TempDir(), small, segments, slots)
	s := open(t, o)
	hot, once := keysOf(1000, 3), keysOf(2000, 1)
	save(t, s, hot...)
	save(t, s, once...)
	loads(t, s, once...)
	next := 0
	for range 20 * slots {
		save(t, s, keyOf(next))
		next++
		loads(t, s, hot...)
		waitReady(t, s)
	}
	loads(t, s, hot...)
	if f := found(t, s, append(once, keysOf(0, 20)...)...); f[0] || f[1] || f[20] {
		t.Error("cold blocks are still there")
	}
	held := segments*slots - 2*slots // one segment is empty, and another may be
	stats := s.Stats()
	if stats.Blocks < int64(held-slots) || stats.Blocks > segments*slots || stats.EvictedBlocks < int64(next-segments*slots) {
		t.Errorf("%d blocks are held, %d were evicted of %d", stats.Blocks, stats.EvictedBlocks, next)
	}
	s = reopen(t, s, o)
	loads(t, s, hot...)
}

// If more blocks are hot than may be carried, the hottest are carried.
func TestHottestFirst(t *testing.T) {
	const slots = 20
	o := options(t.TempDir(), small, 4, slots)
	o.CarryFraction = 0.1
	s := open(t, o)
	for i := range slots {
		save(t, s, keyOf(i))
	}
	for i := range slots {
		for range 1 + i%10 {
			loads(t, s, keyOf(i))
		}
	}
	for i := range 2*slots + 1 {
		save(t, s, keyOf(100+i))
		waitReady(t, s)
	}
	for i, there := range found(t, s, keysOf(0, slots)...) {
		if want := i == 9 || i == 19; there != want {
			t.Errorf("block %d, loaded %d times, is there: %t", i, 1+i%10, there)
		}
	}
}

func TestNegativeCarryFraction(t *testing.T) {
	o := options(t.TempDir(), small, 3, 4)
	o.CarryFraction = -1
	s := open(t, o)
	for i := range 40 {
		save(t, s, keyOf(i))
		if i < 4 {
			loads(t, s, keyOf(i))
		}
	}
	for i, there := range found(t, s, keysOf(0, 4)...) {
		if there {
			t.Errorf("block %d is still there", i)
		}
	}
}

// A damaged block is not carried forward.
func TestDamageIsNotCarried(t *testing.T) {
	const slots = 8
	s := open(t, options(t.TempDir(), small, 4, slots))
	for i := range slots {
		save(t, s, keyOf(i))
	}
	loads(t, s, keysOf(0, 2)...)
	ruin(t, s, keyOf(0))
	for i := range 2*slots + 1 {
		save(t, s, keyOf(100+i))
		waitReady(t, s)
	}
	if f := found(t, s, keysOf(0, 3)...); f[0] || !f[1] || f[2] {
		t.Errorf("found %v", f)
	}
	if stats := s.Stats(); stats.CorruptBlocks != 1 || stats.QuarantinedBlocks != 1 {
		t.Errorf("%d damaged, %d in quarantine", stats.CorruptBlocks, stats.QuarantinedBlocks)
	}
}

// Many goroutines write more than there is space for. The directory never takes more
// than the capacity, nothing wrong is loaded, and no save fails.
func TestCapacityIsEnforced(t *testing.T) {
	const segments, slots, writers, rounds = 6, 12, 4, 60
	l := kv.Layout{BlockBytes: 40 << 10, ShardBytes: 10 << 10}
	o := options(t.TempDir(), l, segments, slots)
	s := open(t, o)
	var most atomic.Int64
	var all sync.WaitGroup
	for w := range writers {
		all.Go(func() {
			for r := range rounds {
				keys := keysOf(w*1000+r*4, 4)
				task, err := s.Save(context.Background(), filled(shardsOf(l, keys...)))
				if err == nil {
					err = task.Wait(context.Background())
				}
				if err != nil {
					t.Errorf("writer %d, round %d: %v", w, r, err)
					return
				}
				load(t, s, keys...)
				for size := onDisk(t, o.Dir); ; {
					was := most.Load()
					if size <= was || most.CompareAndSwap(was, size) {
						break
					}
				}
			}
		})
	}
	all.Wait()
	if most.Load() > o.CapacityBytes || most.Load() < o.CapacityBytes/2 {
		t.Errorf("%d bytes on the disk, of a capacity of %d", most.Load(), o.CapacityBytes)
	}
	if stats := s.Stats(); stats.EvictedBlocks < writers*rounds*4-segments*slots {
		t.Errorf("%d blocks were evicted", stats.EvictedBlocks)
	}
}

// While a block is being read, its segment is not reused, others are, and the bytes that
// are read are right.
func TestReadersPinTheirSegment(t *testing.T) { synctest.Test(t, readersPinTheirSegment) }

func readersPinTheirSegment(t *testing.T) {
	const slots = 4
	m := newInterceptor()
	o := options(t.TempDir(), small, 5, slots)
	o.Engine = m
	s := open(t, o)
	save(t, s, keysOf(0, slots)...)

	var held []func()
	m.intercept(func(op transfer.Op, do func()) { held = append(held, do) })
	shards := shardsOf(small, keyOf(1))
	task, err := s.Load(context.Background(), shards)
	if err != nil {
		t.Fatal(err)
	}
	m.intercept(nil)
	for i := range 10 * slots {
		save(t, s, keyOf(100+i))
	}
	if found(t, s, keyOf(1))[0] {
		t.Error("the block was not evicted at all")
	}
	for _, do := range held {
		do()
	}
	if err := task.Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, sh := range shards {
		if n, _ := content(sh.Key, sh.Index).Check(sh.Buf); n > 0 {
			t.Errorf("%d bytes of shard %d are another block's", n, sh.Index)
		}
	}
	until(t, "the segment is used again", func() bool {
		save(t, s, keyOf(int(time.Now().UnixNano()%1e9)))
		s.mu.RLock()
		defer s.mu.RUnlock()
		for _, seg := range s.segments {
			if seg.state == draining {
				return false
			}
		}
		return true
	})
}

// Unfinished blocks whose shards stopped coming are dropped when they take all the space.
func TestUnfinishedBlocksMakeSpace(t *testing.T) { synctest.Test(t, unfinishedBlocksMakeSpace) }

func unfinishedBlocksMakeSpace(t *testing.T) {
	const segments, slots, blocks = 3, 4, 40
	o := options(t.TempDir(), small, segments, slots)
	o.Timeout = 3 * time.Second
	s := open(t, o)
	var first []kv.Shard
	for _, sh := range shardsOf(small, keysOf(0, blocks)...) {
		if sh.Index == 0 {
			first = append(first, sh)
		}
	}
	if err := beginSave(t, s, first).Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	if n := s.Stats().DroppedBlocks; n < blocks-segments*slots {
		t.Errorf("%d blocks were dropped", n)
	}
	save(t, s, keysOf(0, slots)...)
	loads(t, s, keysOf(0, slots)...)
}

// While every slot is being written there is no space. What does not fit gets ErrFull,
// after one wait for the whole batch.
func TestFullOfWrites(t *testing.T) { synctest.Test(t, fullOfWrites) }

func fullOfWrites(t *testing.T) {
	const segments, slots, blocks = 3, 4, 60
	m := newInterceptor()
	o := options(t.TempDir(), small, segments, slots)
	o.Engine, o.Timeout = m, time.Second
	s := open(t, o)
	waitReady(t, s)
	var mu sync.Mutex
	var held []func()
	m.intercept(func(op transfer.Op, do func()) {
		mu.Lock()
		defer mu.Unlock()
		held = append(held, do)
	})
	task := beginSave(t, s, shardsOf(small, keysOf(0, blocks)...))
	m.intercept(nil)
	for _, do := range held {
		do()
	}
	<-task.Done()
	stored := 0
	for i := range task.Len() {
		switch err, _ := task.Result(i); {
		case err == nil:
			stored++
		case !errors.Is(err, kv.ErrFull):
			t.Fatalf("shard %d: %v", i, err)
		}
	}
	if stored != segments*slots*small.Shards() {
		t.Errorf("%d shards were stored, in %d slots", stored, segments*slots)
	}
	loads(t, s, keysOf((segments-1)*slots, slots)...) // the first have made space by now
}

// A segment that cannot be written to is set aside. The shards concerned get the error,
// what was in it before can still be loaded, and the next save goes elsewhere.
func TestFailingSegmentIsSetAside(t *testing.T) {
	for _, c := range []struct {
		says error
		want error
	}{{syscall.EIO, syscall.EIO}, {syscall.ENOSPC, kv.ErrFull}} {
		m := newInterceptor()
		o := options(t.TempDir(), small, 4, 8)
		o.Engine = m
		s := open(t, o)
		save(t, s, keysOf(0, 3)...)
		bad := s.segmentWith(t, keyOf(0)).data
		m.intercept(func(op transfer.Op, do func()) {
			if op.Write && op.File == bad {
				op.Done(0, c.says)
				return
			}
			do()
		})
		task := beginSave(t, s, shardsOf(small, keyOf(3)))
		if err := task.Wait(context.Background()); !errors.Is(err, c.want) || errors.Is(err, kv.ErrMiss) {
			t.Fatalf("%v became %v", c.says, err)
		}
		if found(t, s, keyOf(3))[0] {
			t.Error("a block that was not written is found")
		}
		save(t, s, keysOf(3, 3)...)
		loads(t, s, keysOf(0, 6)...)
		if s.segmentWith(t, keyOf(3)).data == bad {
			t.Error("the segment is still written to")
		}
		m.intercept(nil)
		if stats := s.Stats(); stats.FailedSaves != int64(small.Shards()) {
			t.Errorf("%d shards failed", stats.FailedSaves)
		}
	}
}

// A read that fails gives its shards the storage's error, and does not count as damage.
func TestFailingReadsAreNoDamage(t *testing.T) {
	m := newInterceptor()
	o := options(t.TempDir(), small, 4, 8)
	o.Engine = m
	s := open(t, o)
	save(t, s, keysOf(0, 2)...)
	heads := map[int64]bool{}
	for i := range s.geo.slots {
		heads[s.geo.headAt(i)] = true
	}
	for name, c := range map[string]struct {
		head bool
		says error
		want error
		free bool // the buffers are the caller's
	}{
		"head":           {true, syscall.EIO, syscall.EIO, true},
		"shard":          {false, syscall.EIO, syscall.EIO, true},
		"head is late":   {true, kv.ErrTimeout, kv.ErrTimeout, true},
		"head is held":   {true, kv.Abandoned("the disk"), kv.ErrTimeout, true},
		"shard is held":  {false, kv.Abandoned("the disk"), kv.ErrAbandoned, false},
		"shard canceled": {false, context.Canceled, context.Canceled, true},
	} {
		m.intercept(func(op transfer.Op, do func()) {
			if heads[op.Offset] == c.head {
				op.Done(0, c.says)
				return
			}
			do()
		})
		task, err := s.Load(context.Background(), shardsOf(small, keyOf(0)))
		if err != nil {
			t.Fatal(err)
		}
		err = task.Wait(context.Background())
		if !errors.Is(err, c.want) || errors.Is(err, kv.ErrMiss) || c.free && errors.Is(err, kv.ErrAbandoned) {
			t.Errorf("%s: %v became %v", name, c.says, err)
		}
		m.intercept(nil)
	}
	if stats := s.Stats(); stats.CorruptBlocks != 0 || stats.FailedLoads != int64(6*small.Shards()) {
		t.Errorf("%d damaged, %d failed", stats.CorruptBlocks, stats.FailedLoads)
	}
	loads(t, s, keysOf(0, 2)...)
}

// segmentWith is the segment that has a block.
func (s *Store) segmentWith(t testing.TB, key kv.Key) *segment {
	t.Helper()
	s.mu.RLock()
	defer s.mu.RUnlock()
	at, ok := s.table.find(key)
	if !ok {
		t.Fatalf("block %s is not there", key)
	}
	return s.segmentOf(at)
}

// A block whose shards stop coming is dropped, and is nowhere after a restart.
func TestUnfinishedBlockIsDropped(t *testing.T) { synctest.Test(t, unfinishedBlockIsDropped) }

func unfinishedBlockIsDropped(t *testing.T) {
	o := options(t.TempDir(), small, 4, 8)
	o.Timeout = 100 * time.Millisecond
	s := open(t, o)
	waitReady(t, s)
	if err := beginSave(t, s, shardsOf(small, keyOf(0))[:2]).Wait(context.Background()); err != nil {
		t.Fatal(err)
	}
	until(t, "it is dropped", func() bool { return s.Stats().DroppedBlocks == 1 && s.unfinished.Len() == 0 })
	if found(t, s, keyOf(0))[0] {
		t.Error("it is found")
	}
	save(t, s, keyOf(0), keyOf(1))
	loads(t, s, keyOf(0), keyOf(1))
}

// Blocks of two namespaces share a directory, one process after the other.
func TestNamespacesTakeTurns(t *testing.T) {
	const slots = 4
	a := options(t.TempDir(), small, 8, slots)
	b := a
	b.Namespace[0]++
	s := open(t, a)
	save(t, s, keysOf(0, 6)...)
	s = reopen(t, s, b)
	if n := s.Stats().Blocks; n != 0 {
		t.Fatalf("%d blocks of another namespace", n)
	}
	save(t, s, keysOf(3, 6)...)
	loads(t, s, keysOf(3, 6)...)
	s = reopen(t, s, a)
	if n := s.Stats().Blocks; n != 6 {
		t.Fatalf("%d blocks of 6 are back", n)
	}
	loads(t, s, keysOf(0, 6)...)
	for i := range 20 * slots {
		save(t, s, keyOf(100+i))
		waitReady(t, s)
	}
	if s = reopen(t, s, b); s.Stats().Blocks != 0 {
		t.Error("a namespace that is gone comes back")
	}
}

// A disk that fails all writes costs the blocks of a few segments. The others can still
// be read: failed saves do not evict one segment after the other.
func TestBrokenDiskKeepsWhatItHas(t *testing.T) { synctest.Test(t, brokenDiskKeepsWhatItHas) }

func brokenDiskKeepsWhatItHas(t *testing.T) {
	const segments, slots = 8, 4
	m := newInterceptor()
	o := options(t.TempDir(), small, segments, slots)
	o.Engine, o.Timeout = m, 100*time.Millisecond
	s := open(t, o)
	for i := range (segments - 2) * slots {
		waitReady(t, s)
		save(t, s, keyOf(i))
	}
	m.intercept(func(op transfer.Op, do func()) {
		if op.Write {
			op.Done(0, syscall.EIO)
			return
		}
		do()
	})
	for i := range segments + 2 {
		err := beginSave(t, s, shardsOf(small, keyOf(1000+i))).Wait(context.Background())
		if !errors.Is(err, syscall.EIO) && !errors.Is(err, kv.ErrFull) {
			t.Fatal(err)
		}
	}
	left := 0
	for _, there := range load(t, s, keysOf(0, (segments-2)*slots)...) {
		if there {
			left++
		}
	}
	if left < (segments-5)*slots {
		t.Errorf("%d blocks of %d are left", left, (segments-2)*slots)
	}
	m.intercept(nil)
	until(t, "it is written to again", func() bool {
		return beginSave(t, s, shardsOf(small, keyOf(2000))).Wait(context.Background()) == nil
	})
	loads(t, s, keyOf(2000))
}

// A slot that the storage may still write to never gets another block.
func TestAbandonedSlotIsNotUsedAgain(t *testing.T) { synctest.Test(t, abandonedSlotIsNotUsedAgain) }

func abandonedSlotIsNotUsedAgain(t *testing.T) {
	const slots = 4
	m := newInterceptor()
	o := options(t.TempDir(), small, 5, slots)
	o.Engine = m
	s := open(t, o)
	save(t, s, keyOf(0))
	var late func()
	m.intercept(func(op transfer.Op, do func()) {
		buf := op.Buf
		op.Done(0, kv.Abandoned("the disk"))
		late = func() { put(t, s.segments[0].file.Name(), op.Offset, buf) }
	})
	seg := s.segmentWith(t, keyOf(0))
	if seg != s.segments[0] {
		t.Fatal("block 0 is not in the first segment")
	}
	task := beginSave(t, s, shardsOf(small, keyOf(1)))
	if err := task.Wait(context.Background()); !errors.Is(err, kv.ErrAbandoned) {
		t.Fatal(err)
	}
	m.intercept(nil)
	generation := s.generationOf(seg)
	for i := range 8 * slots {
		save(t, s, keyOf(100+i))
		waitReady(t, s)
	}
	late()
	if s.generationOf(seg) != generation {
		t.Error("the segment has a new generation")
	}
	loads(t, s, keysOf(100+7*slots, slots)...)
}
