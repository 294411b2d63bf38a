package cache

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// filling is a slot that this process fills from next. The store's lock guards it.
type filling struct {
	s       *Store
	slot    int32
	key     kv.Key
	shards  []arrival
	onWay   int      // shards that fetches are loading
	missing bool     // next does not have all of the block
	lost    bool     // next's storage may still write into the slot
	after   []func() // called at the end; they must not wait
}

// arrival is a shard of a filling.
type arrival struct {
	fetch   *fetch // that loads it, nil when none does
	waiting *item  // list of the items that wait for it
}

// mayFetch reports whether this shard may be fetched now.
func (f *filling) mayFetch(index int) bool {
	return !f.missing && !f.lost && f.shards[index].fetch == nil && !f.s.table.Has(f.slot, index)
}

// slotFor returns a slot that this process fills with a block that is not in memory, or
// not all of it. The lock and the table are held.
func (s *Store) slotFor(key kv.Key, now int64) (int32, bool) {
	slot, ok := s.table.Find(key)
	if ok {
		switch h := s.table.Head(slot); h.State {
		case table.Partial:
			s.table.Become(slot, table.Loading)
		case table.Loading:
			return slot, h.Mine && s.fillings[slot] != nil
		default:
			return 0, false
		}
	} else {
		if slot, ok = s.alloc(); !ok {
			return 0, false
		}
		s.table.Claim(slot, key, table.Loading, 0, now)
	}
	s.fillings[slot] = &filling{s: s, slot: slot, key: key, shards: make([]arrival, s.layout.Shards())}
	return slot, true
}

// fetch is the shards that next loads into the cache for a batch. It goes on after the
// batch is cancelled if another batch waits for a part of it. It has a context of its
// own, which ends with Close, because it may outlive the batch.
type fetch struct {
	s      *Store
	ctx    context.Context // ends with Close: a fetch may outlive its batch
	cancel context.CancelFunc
	shards []kv.Shard // whose buffers are slots
	fills  []*filling // by shard
	task   *kv.Task   // next's
	unique uint64     // the version of what next says none of

	// Guarded by the store's lock.
	prefetch  bool
	wanted    int // items that wait
	cancelled bool
}

func (s *Store) newFetch() *fetch {
	f := &fetch{s: s, unique: table.NewVersion()}
	f.ctx, f.cancel = context.WithCancel(s.group.Closing())
	return f
}

// add adds a shard. The lock and the table are held.
func (f *fetch) add(fill *filling, index int) {
	fill.shards[index].fetch = f
	fill.onWay++
	f.shards = append(f.shards, kv.Shard{Key: fill.key, Index: index, Buf: f.s.table.Shard(fill.slot, index)})
	f.fills = append(f.fills, fill)
}

// run makes next load the shards, and hands each to the copiers as it arrives.
func (f *fetch) run() {
	defer f.cancel()
	t, err := f.s.next.Load(f.ctx, f.shards)
	if err != nil {
		for i := range f.shards {
			f.failed(i, err)
		}
		return
	}
	f.task = t
	for i, err := range t.All() {
		if err != nil {
			f.failed(i, err)
			continue
		}
		f.s.group.Hold()
		f.s.copiers.Each(f, i, i+1, f.s.grain)
	}
}

// Do accepts a shard that has been loaded into the cache, and copies it to the batches
// that wait for it. The checksum is computed from the bytes that the first of them gets.
func (f *fetch) Do(i int) {
	s, shard, fill := f.s, f.shards[i], f.fills[i]
	defer s.group.Leave()
	version := cmp.Or(f.task.Version(i), f.unique)
	s.mu.Lock()
	first := fill.take(shard.Index)
	err := s.table.SetVersion(fill.slot, version)
	if errors.Is(err, table.ErrVersion) {
		fill.missing = true // next has replaced the block, and does not have the rest of it
	}
	s.mu.Unlock()
	var dst []byte
	if first != nil {
		dst = first.b.Shard(first.i).Buf
	}
	if err == nil {
		err = s.table.Accept(dst, fill.slot, shard.Key, shard.Index)
	}
	rest := fill.arrived(shard.Index)
	switch {
	case first == nil:
	case err != nil:
		first.b.again(first.i)
	default:
		first.b.deliver(first.i, version)
	}
	for _, it := range rest {
		if err != nil {
			it.b.again(it.i)
			continue
		}
		it.b.read(it.i)
	}
}

// failed tells the batches that wait for a shard that next could not load it.
func (f *fetch) failed(i int, err error) {
	s, fill := f.s, f.fills[i]
	useless := s.table.Check() != nil
	s.mu.Lock()
	switch {
	case errors.Is(err, kv.ErrAbandoned):
		// The storage may still write into the slot, but not into the callers' buffers.
		fill.lost = true
		err = fmt.Errorf("%w: %v", kv.ErrTimeout, err)
	case errors.Is(err, kv.ErrMiss):
		fill.missing = true
	}
	s.mu.Unlock()
	for _, it := range fill.arrived(f.shards[i].Index) {
		if useless {
			it.b.again(it.i) // the memory failed, not next
		} else {
			it.b.Settle(it.i, err)
		}
	}
}

// take removes one of the items that wait for a shard. The lock is held.
func (f *filling) take(index int) *item {
	p := &f.shards[index]
	for it := p.waiting; it != nil; it = p.waiting {
		p.waiting = it.next
		if it.waiting {
			it.waiting = false
			p.fetch.wanted--
			return it
		}
	}
	return nil
}

// arrived ends the fetching of a shard, with or without success, and removes all items
// that wait for it.
func (f *filling) arrived(index int) []*item {
	f.s.mu.Lock()
	defer f.s.mu.Unlock()
	var all []*item
	for it := f.take(index); it != nil; it = f.take(index) {
		all = append(all, it)
	}
	f.shards[index].fetch = nil
	if f.onWay--; f.onWay == 0 {
		f.end()
	}
	return all
}

// end lets all processes use the slot again. The lock is held.
func (f *filling) end() {
	s := f.s
	delete(s.fillings, f.slot)
	s.settle(func() {
		switch n := s.table.Count(f.slot); {
		case s.table.Head(f.slot).Doomed && !f.lost:
			s.table.Become(f.slot, table.Free)
		case f.lost:
			s.table.Become(f.slot, table.Lost)
		case f.missing || n == 0:
			s.table.Become(f.slot, table.Free)
		case n == s.layout.Shards():
			s.table.Become(f.slot, table.Clean)
		default:
			s.table.Become(f.slot, table.Partial)
		}
	})
	s.spaceChanged()
	for _, fn := range f.after {
		fn()
	}
}
