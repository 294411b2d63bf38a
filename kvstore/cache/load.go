package cache

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/kvstore/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// batch is a Load on its way.
type batch struct {
	s    *Store
	task *kv.Task

	// ctx is the task's and ends with Close, too.
	ctx    context.Context
	cancel context.CancelFunc
	left   atomic.Int64 // shards that are not settled

	items  []item
	hits   []int32 // shards that are in memory
	direct []int32 // shards that next loads into the caller's buffer
	fetch  *fetch  // what this batch asks of next for the cache, nil for nothing
	waits  bool    // some shards wait for this fetch or for others'

	// Guarded by the store's lock.
	serial   uint64
	now      int64
	pinned   []int32
	retries  []int32 // shards that next is to load after all
	retrying bool    // by a goroutine that is at it
}

// item is a shard of a batch. All but the shard itself is guarded by the store's
// lock.
type item struct {
	b       *batch
	i       int
	slot    int32
	waiting bool   // to be settled by whoever takes this away
	fetch   *fetch // that brings it
	next    *item  // that waits for the same
}

// Load copies what is in memory, and fetches what is not.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	if err := s.admit(ctx, shards, s.loads); err != nil {
		return nil, err
	}
	s.calls.Add(1) // the batch's own may end before this does
	defer s.calls.Done()
	b := &batch{s: s, task: kv.NewTask(ctx, shards), items: make([]item, len(shards)), now: table.Now()}
	b.ctx, b.cancel = context.WithCancel(b.task.Context())
	b.left.Store(int64(len(shards)))
	b.register()
	b.plan()
	b.begin()
	return b.task, nil
}

// register makes the batch known to Close.
func (b *batch) register() {
	s := b.s
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	b.serial = s.serial
	s.batches[b] = struct{}{}
	if s.closed {
		b.cancel()
	}
}

// plan decides what is done for each shard. What is in memory is pinned before
// anything is evicted for the rest.
func (b *batch) plan() {
	decided := make([]bool, len(b.items))
	b.each(decided, b.attach)
	b.each(decided, func(i int) bool { return b.attach(i) || b.claim(i) })
	for i, d := range decided {
		if !d {
			b.direct = append(b.direct, int32(i))
		}
	}
}

// each calls decide, with the lock and the table held, for the shards that are not
// decided yet. Now and then it lets others in.
func (b *batch) each(decided []bool, decide func(i int) bool) {
	for low := 0; low < len(decided); low += planAtOnce {
		high := min(low+planAtOnce, len(decided))
		if !slices.Contains(decided[low:high], false) {
			continue
		}
		b.s.mu.Lock()
		b.s.do(func() {
			for i := low; i < high; i++ {
				if !decided[i] {
					decided[i] = decide(i)
				}
			}
		})
		b.s.mu.Unlock()
	}
}

// attach takes a shard that is in memory or on its way there. The lock and the table
// are held.
func (b *batch) attach(i int) bool {
	s, shard, it := b.s, b.task.Shard(i), &b.items[i]
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

// claim makes a shard part of what this batch fetches, if there is a slot for it. The
// lock and the table are held.
func (b *batch) claim(i int) bool {
	s, shard := b.s, b.task.Shard(i)
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

// pin pins a slot once for the batch. What comes first in a batch counts as used
// last: the root of a prefix outlives its leaves.
func (b *batch) pin(slot int32, i int) {
	s := b.s
	if s.marks[slot] == b.serial {
		return
	}
	s.marks[slot] = b.serial
	s.pin(slot)
	s.table.Touch(slot, b.now+int64(len(b.items)-i))
	b.pinned = append(b.pinned, slot)
}

// begin starts what was planned: first what takes longest.
func (b *batch) begin() {
	s := b.s
	if b.fetch != nil {
		s.calls.Go(b.fetch.run)
	}
	if len(b.direct) > 0 {
		s.calls.Go(func() { b.loadDirect(b.direct) })
	}
	if b.waits {
		s.calls.Go(b.watch)
	}
	if len(b.hits) > 0 {
		s.crew.push(b, 0, len(b.hits))
	}
}

// copy copies one that is in memory.
func (b *batch) copy(n int) {
	i := b.hits[n]
	if err := b.ctx.Err(); err != nil {
		b.settle(int(i), b.why(err))
		return
	}
	b.read(int(i))
}

// read copies a shard out of the slot that has it. If it is damaged, next may have
// the block still.
func (b *batch) read(i int) {
	shard := b.task.Shard(i)
	err := b.s.table.Read(shard.Buf, b.items[i].slot, shard.Key, shard.Index)
	if err == nil {
		b.settle(i, nil)
		return
	}
	if errors.Is(err, table.ErrDamaged) {
		b.s.damaged(shard.Key, b.items[i].slot)
	}
	b.again(i)
}

// again has next load a shard that the cache could not, with others of which the same
// is true.
func (b *batch) again(i int) {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	b.retries = append(b.retries, int32(i))
	if !b.retrying {
		b.retrying = true
		b.s.calls.Go(b.retry)
	}
}

func (b *batch) retry() {
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

// damaged drops a block that is not what was put there.
func (s *Store) damaged(key kv.Key, slot int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(func() {
		there, ok := s.table.Find(key)
		if !ok || there != slot {
			return // another shard of it has told already
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

// loadDirect has next load shards into the caller's buffers.
func (b *batch) loadDirect(which []int32) {
	shards := make([]kv.Shard, len(which))
	for n, i := range which {
		shards[n] = b.task.Shard(int(i))
	}
	t, err := b.s.next.Load(b.ctx, shards)
	if err != nil {
		for _, i := range which {
			b.settle(int(i), b.why(err))
		}
		return
	}
	for n, err := range t.All() {
		b.settle(int(which[n]), b.why(err))
	}
}

// watch settles what waits when the batch is cancelled, so that it need not wait for
// what others want.
func (b *batch) watch() {
	<-b.ctx.Done()
	s := b.s
	var left []int
	var unwanted []*fetch
	s.mu.Lock()
	for i := range b.items {
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
	s.mu.Unlock()
	for _, f := range unwanted {
		f.cancel()
	}
	for _, i := range left {
		b.settle(i, b.why(b.ctx.Err()))
	}
}

// why is the error for the caller.
func (b *batch) why(err error) error { return why(b.task.Context(), err) }

// settle settles a shard. The last one lets go of everything before its caller knows.
func (b *batch) settle(i int, err error) {
	s := b.s
	switch {
	case err == nil:
		s.count.LoadedShards.Add(1)
		s.count.LoadedBytes.Add(s.layout.ShardBytes)
	case errors.Is(err, kv.ErrMiss):
		s.count.MissedShards.Add(1)
	default:
		s.count.FailedLoads.Add(1)
	}
	if b.left.Add(-1) > 0 {
		b.task.Settle(i, err)
		return
	}
	s.mu.Lock()
	s.unpin(b.pinned)
	delete(s.batches, b)
	s.mu.Unlock()
	b.task.Settle(i, err)
	b.cancel()
	s.leave(s.loads)
}
