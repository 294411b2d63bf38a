package cache

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// loading is a batch of Load.
type loading struct {
	*batch.Batch
	s *Store

	items  []item
	hits   []int32 // shards that are in memory
	direct []int32 // shards that next loads into the caller's buffer
	fetch  *fetch  // what next loads into the cache for this batch, nil for nothing
	waits  bool    // some shards wait for this fetch or for others'

	serial uint64 // of the batch, see Store.marks

	blockOf  []int32         // by shard: its block's place in versions
	versions []atomic.Uint64 // by block: of the shards that were settled without an error, 0 for none

	// Guarded by the store's lock.
	now      int64
	pinned   []int32
	retries  []int32 // shards that next has to load after all
	retrying bool    // a goroutine works on them
}

// item is a shard of a batch. The store's lock guards all but the shard itself.
type item struct {
	b       *loading
	i       int
	slot    int32
	waiting bool           // the goroutine that clears it settles the shard
	fetch   *fetch         // that loads it
	next    *item          // that waits for the same shard
	was     table.Recorded // of a shard that was found damaged
}

// Load copies what is in memory, and fetches what is not.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	began, err := s.group.Begin(ctx, batch.Load, shards, s.loads)
	if err != nil {
		return nil, err
	}
	s.group.Hold() // the batch may be done before this call is
	defer s.group.Leave()
	b := &loading{Batch: began, s: s, items: make([]item, len(shards)), serial: s.serial.Add(1), now: table.Now()}
	b.Last = b.release
	b.number()
	b.plan()
	b.begin()
	return b.Task, nil
}

// number gives each block of the batch a place in versions.
func (b *loading) number() {
	b.blockOf = make([]int32, b.Len())
	places := map[kv.Key]int32{}
	for i := range b.blockOf {
		key := b.Shard(i).Key
		if i > 0 && key == b.Shard(i-1).Key {
			b.blockOf[i] = b.blockOf[i-1]
			continue
		}
		place, known := places[key]
		if !known {
			place = int32(len(places))
			places[key] = place
		}
		b.blockOf[i] = place
	}
	b.versions = make([]atomic.Uint64, len(places))
}

// settle settles a shard that was loaded. All shards of a block must be of one version: the
// rest of the one that came first is no longer there.
func (b *loading) settle(i int, version uint64, err error) {
	if of := &b.versions[b.blockOf[i]]; err == nil && !of.CompareAndSwap(0, version) && of.Load() != version {
		err = kv.ErrMiss
	}
	b.Settle(i, err)
}

// release removes the pins before the caller sees that the batch is done.
func (b *loading) release() {
	b.s.inTurns(len(b.pinned), func(low, high int) { b.s.unpin(b.pinned[low:high]) })
}

// plan decides how each shard is loaded. It pins what is in memory before it evicts
// anything for the rest.
func (b *loading) plan() {
	decided := make([]bool, len(b.items))
	b.each(decided, b.attach)
	b.each(decided, func(i int) bool { return b.attach(i) || b.claim(i) })
	for i, d := range decided {
		if !d {
			b.direct = append(b.direct, int32(i))
		}
	}
}

// each calls decide for the shards that are not decided yet, with the lock and the table
// held. It releases both now and then.
func (b *loading) each(decided []bool, decide func(i int) bool) {
	if !slices.Contains(decided, false) {
		return
	}
	b.s.inTurns(len(decided), func(low, high int) {
		if !slices.Contains(decided[low:high], false) {
			return
		}
		b.s.do(func() {
			for i := low; i < high; i++ {
				if !decided[i] {
					decided[i] = decide(i)
				}
			}
		})
	})
}

// attach pins a shard that is in memory, or waits for one that is being loaded, and
// reports whether it is either. The lock and the table are held.
func (b *loading) attach(i int) bool {
	s, shard, it := b.s, b.Shard(i), &b.items[i]
	slot, ok := s.table.Find(shard.Key)
	if !ok {
		return false
	}
	h := s.table.Head(slot)
	if h.State.Readable() && s.table.Has(slot, shard.Index) {
		b.pin(slot, i)
		*it = item{b: b, i: i, slot: slot}
		b.hits = append(b.hits, int32(i))
		return true
	}
	f := s.fillings[slot]
	if f == nil || h.State != table.Loading || !h.Mine {
		return false
	}
	p := &f.shards[shard.Index]
	if p.fetch == nil || p.fetch.cancelled {
		return false
	}
	b.pin(slot, i)
	p.fetch.wanted++
	*it = item{b: b, i: i, slot: slot, waiting: true, fetch: p.fetch, next: p.waiting}
	p.waiting = it
	b.waits = true
	return true
}

// claim adds a shard to what this batch fetches, and reports whether there was a slot for
// it. The lock and the table are held.
func (b *loading) claim(i int) bool {
	s, shard := b.s, b.Shard(i)
	slot, ok := s.slotFor(shard.Key, b.now)
	if !ok || !s.fillings[slot].mayFetch(shard.Index) {
		return false
	}
	if b.fetch == nil {
		b.fetch = s.newFetch()
	}
	b.fetch.add(s.fillings[slot], shard.Index)
	return b.attach(i)
}

// pin pins a slot once for the batch. The first shards of a batch count as used last, so
// that the root of a prefix outlives its leaves.
func (b *loading) pin(slot int32, i int) {
	s := b.s
	if s.marks[slot] == b.serial {
		return
	}
	s.marks[slot] = b.serial
	s.pin(slot)
	s.table.Touch(slot, b.now+int64(len(b.items)-i))
	b.pinned = append(b.pinned, slot)
}

// begin starts what was planned, the slowest part first.
func (b *loading) begin() {
	s := b.s
	if b.fetch != nil {
		s.group.Go(b.fetch.run)
	}
	if len(b.direct) > 0 {
		s.group.Go(func() { b.loadDirect(b.direct) })
	}
	if b.waits {
		s.group.Go(b.watch)
	}
	if len(b.hits) > 0 {
		s.copiers.Each(b, 0, len(b.hits), s.grain)
	}
}

// Do copies the n-th of the shards that are in memory.
func (b *loading) Do(n int) {
	i := int(b.hits[n])
	if err := b.Ended(); err != nil {
		b.Settle(i, err)
		return
	}
	b.read(i)
}

// read copies a shard out of its slot. If it is damaged, next may still have the block.
func (b *loading) read(i int) {
	shard := b.Shard(i)
	was, err := b.s.table.Read(shard.Buf, b.items[i].slot, shard.Key, shard.Index)
	if err == nil {
		b.deliver(i, was.Version)
		return
	}
	if errors.Is(err, table.ErrDamaged) {
		b.items[i].was = was
		b.s.damaged(shard.Key, b.items[i].slot)
	}
	b.again(i)
}

// again makes next load a shard that the cache could not, together with other such
// shards.
func (b *loading) again(i int) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.retries = append(b.retries, int32(i))
	if !b.retrying {
		b.retrying = true
		b.s.group.Go(b.retry)
	}
}

func (b *loading) retry() {
	for {
		b.s.mu.Lock()
		which := b.retries
		b.retries, b.retrying = nil, len(which) > 0
		b.s.mu.Unlock()
		if len(which) == 0 {
			return
		}
		b.loadDirect(which)
	}
}

// damaged removes a block whose bytes have changed in memory.
func (s *Store) damaged(key kv.Key, slot int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(func() {
		there, ok := s.table.Find(key)
		if !ok || there != slot {
			return // it was removed for another shard already
		}
		s.count.CorruptBlocks.Add(1)
		if h := s.table.Head(slot); h.State == table.Loading {
			if f := s.fillings[slot]; f != nil && h.Mine {
				f.missing = true
			}
			return
		}
		s.table.Become(slot, table.Free)
	})
}

// loadDirect makes next load shards into the caller's buffers, or through staging memory
// onto the device.
func (b *loading) loadDirect(which []int32) {
	which = b.loadStaged(which)
	if len(which) == 0 {
		return
	}
	shards := make([]kv.Shard, len(which))
	for n, i := range which {
		shards[n] = b.Shard(int(i))
	}
	t, err := b.s.next.Load(b.Context(), shards)
	if err != nil {
		for _, i := range which {
			b.Settle(int(i), err)
		}
		return
	}
	unique := table.NewVersion()
	for n, err := range t.All() {
		i, version := int(which[n]), cmp.Or(t.Version(n), unique)
		if err == nil {
			version = b.versionOf(i, version, shards[n])
		}
		b.settle(i, version, err)
	}
}

// versionOf returns the version of a shard that next has loaded and calls so. Whatever next
// calls it, it may be the shard that was damaged in memory.
func (b *loading) versionOf(i int, version uint64, shard kv.Shard) uint64 {
	if was := b.items[i].was; was != (table.Recorded{}) && was.Sum == table.Sum(shard) {
		return was.Version
	}
	return version
}

// watch settles the waiting shards when the batch is cancelled, so that it does not wait
// for fetches that go on for other batches.
func (b *loading) watch() {
	<-b.Context().Done()
	s := b.s
	var left []int
	var unwanted []*fetch
	s.inTurns(len(b.items), func(low, high int) {
		for i := low; i < high; i++ {
			it := &b.items[i]
			if !it.waiting {
				continue
			}
			it.waiting = false
			left = append(left, i)
			if it.fetch.wanted--; it.fetch.wanted == 0 && !it.fetch.prefetch {
				it.fetch.cancelled = true
				unwanted = append(unwanted, it.fetch)
			}
		}
	})
	for _, f := range unwanted {
		f.cancel()
	}
	for _, i := range left {
		b.Settle(i, b.Ended())
	}
}
