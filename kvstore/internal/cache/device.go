package cache

import (
	"cmp"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/mover"
)

// deliver settles a shard whose bytes are in its slot, and in the caller's Buf if it has
// one; else they are copied to the device first.
func (b *loading) deliver(i int, version uint64) {
	s, shard, slot := b.s, b.Shard(i), b.items[i].slot
	if shard.Device == nil {
		b.settle(i, version, nil)
		return
	}
	s.mover.Begin(b.Context(), mover.Copy{
		Place: *shard.Device, Host: s.table.Shard(slot, shard.Index),
		Done: func(err error) {
			switch {
			case errors.Is(err, kv.ErrAbandoned):
				s.keep(slot)
			case err == nil && s.table.Broken():
				b.again(i) // what was copied may be other memory
				return
			}
			b.settle(i, version, err)
		},
		Late: func() { s.release(slot) },
	})
}

// keep pins a slot beyond the end of the batch, because the device may still read from it.
func (s *Store) keep(slot int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.settle(func() { s.pin(slot) })
}

// release undoes keep.
func (s *Store) release(slot int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.left {
		s.unpin([]int32{slot})
	}
}

// blockShards is shards of a batch that belong to one block.
type blockShards struct {
	key   kv.Key
	which []int32
}

// onDevice returns the blocks with a shard in the device's memory, in their order, and all
// other shards. All shards of a block go to next together: what a store says of versions
// holds within one call, and so does what it knows of writers.
func onDevice(which []int32, shard func(i int) kv.Shard) (blocks []*blockShards, rest []int32) {
	of := map[kv.Key]*blockShards{}
	for _, i := range which {
		if s := shard(int(i)); s.Device != nil && of[s.Key] == nil {
			b := &blockShards{key: s.Key}
			of[s.Key] = b
			blocks = append(blocks, b)
		}
	}
	if len(blocks) == 0 {
		return nil, which
	}
	for _, i := range which {
		if b := of[shard(int(i)).Key]; b != nil {
			b.which = append(b.which, i)
		} else {
			rest = append(rest, i)
		}
	}
	return blocks, rest
}

// loadStaged makes next load the blocks with shards on the device into staging memory, and
// returns the other shards. It waits for staging memory.
func (b *loading) loadStaged(which []int32) []int32 {
	blocks, rest := onDevice(which, b.Shard)
	for _, block := range blocks {
		mem, err := b.s.staging.take(b.Context())
		if err != nil {
			for _, i := range block.which {
				b.Settle(int(i), err)
			}
			continue
		}
		b.s.group.Go(func() { b.loadBlock(mem, block) })
	}
	return rest
}

// loadBlock loads shards of one block, those for the device by way of mem.
func (b *loading) loadBlock(mem *stagedBlock, block *blockShards) {
	var shards []kv.Shard
	var of [][]int32 // by shard of shards: the shards of the batch that get it
	place := map[int]int{}
	for _, i := range block.which {
		shard := b.Shard(int(i))
		if shard.Device == nil {
			shards, of = append(shards, shard), append(of, []int32{i})
			continue
		}
		n, known := place[shard.Index]
		if !known {
			n = len(shards)
			place[shard.Index] = n
			shards = append(shards, kv.Shard{Key: shard.Key, Index: shard.Index, Buf: mem.shard(shard.Index)})
			of = append(of, nil)
		}
		of[n] = append(of[n], i)
	}
	defer mem.release()
	t, err := b.s.next.Load(b.Context(), shards)
	if err != nil {
		for _, i := range block.which {
			b.Settle(int(i), err)
		}
		return
	}
	unique := table.NewVersion()
	for n, err := range t.All() {
		staged := b.Shard(int(of[n][0])).Device != nil
		if staged && errors.Is(err, kv.ErrAbandoned) {
			mem.hold() // for ever: the storage may still write there, but not to the caller's memory
			err = fmt.Errorf("%w: %v", kv.ErrTimeout, err)
		}
		for _, i := range of[n] {
			switch version := cmp.Or(t.Version(n), unique); {
			case err != nil:
				b.settle(int(i), 0, err)
			case !staged:
				b.settle(int(i), b.versionOf(int(i), version, shards[n]), nil)
			default:
				b.deliverStaged(int(i), b.versionOf(int(i), version, shards[n]), mem, shards[n].Buf)
			}
		}
	}
}

// deliverStaged copies a shard from staging memory to the device and settles it.
func (b *loading) deliverStaged(i int, version uint64, mem *stagedBlock, buf []byte) {
	mem.hold()
	b.s.mover.Begin(b.Context(), mover.Copy{
		Place: *b.Shard(i).Device, Host: buf,
		Done: func(err error) {
			if !errors.Is(err, kv.ErrAbandoned) {
				mem.release()
			}
			b.settle(i, version, err)
		},
		Late: mem.release,
	})
}

// fetch copies a shard from the device into its slot, and then seals it.
func (d *saving) fetch(i int) {
	s, shard, slot := d.s, d.Shard(i), d.blocks[i].Payload.slot
	s.mover.Begin(d.Context(), mover.Copy{
		Place: *shard.Device, Host: s.table.Shard(slot, shard.Index), ToHost: true,
		Done: func(err error) {
			if errors.Is(err, kv.ErrAbandoned) {
				s.notClear(slot)
			}
			if err != nil {
				d.wrote(i, err)
				return
			}
			s.copiers.EachBulk(sealing{d}, i, i+1, s.grain)
		},
		Late: func() { s.cleared(slot) },
	})
}

// sealing is the shards of a batch that the device has put into their slots.
type sealing struct{ *saving }

// Do computes the checksum of a shard.
func (d sealing) Do(i int) {
	shard, block := d.Shard(i), d.blocks[i]
	sum, err := d.s.table.Seal(block.Payload.slot, shard.Key, shard.Index)
	block.Sums[shard.Index] = sum
	d.wrote(i, err)
}

// checkClear returns an error for a block into whose slot the device may still write. What
// is written there now might be overwritten.
func (s *Store) checkClear(block *unfinished) error {
	if s.abandoned.Load() == 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unclear[block.Payload.slot] > 0 {
		return fmt.Errorf("%w: another shard of block %s was abandoned on its way from the device", kv.ErrTimeout, block.Key)
	}
	return nil
}

// giveUpUnclear gives a block up into whose slot the device may still write, unless other
// shards of it are on their way: the last of these does.
func (s *Store) giveUpUnclear(block *unfinished) {
	slot := block.Payload.slot
	s.mu.Lock()
	unclear := s.unclear[slot] > 0
	s.mu.Unlock()
	if !unclear {
		return
	}
	if b := s.blocks.GiveUp(block.Key, func(p slotRef) bool { return p.slot == slot }); b != nil {
		s.giveUp(b)
	}
}

// afterSaving is what becomes of the slot of a save that has failed: nothing uses it again
// while the device may write into it. The lock is held.
func (s *Store) afterSaving(slot int32) table.State {
	if s.unclear[slot] > 0 {
		return table.Lost
	}
	return table.Free
}

// notClear notes that the device may still write into a slot.
func (s *Store) notClear(slot int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unclear[slot]++
	s.abandoned.Add(1)
}

// cleared notes that an abandoned copy into a slot has ended.
func (s *Store) cleared(slot int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left {
		return
	}
	s.abandoned.Add(-1)
	if s.unclear[slot]--; s.unclear[slot] > 0 {
		return
	}
	delete(s.unclear, slot)
	s.settle(func() {
		if h := s.table.Head(slot); h.State == table.Lost && h.Mine {
			s.table.Become(slot, table.Free)
		}
	})
	s.spaceChanged()
}

// stagedShard is the bytes of a shard in the device's memory. The zero value has none.
type stagedShard struct {
	buf []byte
	mem *stagedBlock
}

func (h stagedShard) release() {
	if h.mem != nil {
		h.mem.release()
	}
}

// stage fetches the bytes of a shard, so that they can be compared with what another batch
// has brought, and then has the shard planned again.
func (d *saving) stage(i int, again func()) {
	s, shard := d.s, d.Shard(i)
	s.group.Go(func() {
		mem, err := s.staging.take(d.Context())
		if err != nil {
			d.Settle(i, err)
			return
		}
		buf := mem.shard(shard.Index)
		s.mover.Begin(d.Context(), mover.Copy{
			Place: *shard.Device, Host: buf, ToHost: true,
			Done: func(err error) {
				if err != nil {
					if !errors.Is(err, kv.ErrAbandoned) {
						mem.release()
					}
					d.Settle(i, err)
					return
				}
				s.planner.putStaged(d, i, stagedShard{buf, mem})
				again()
			},
			Late: mem.release,
		})
	})
}

func (q *planner) putStaged(d *saving, i int, h stagedShard) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if d.staged == nil {
		d.staged = map[int32]stagedShard{}
	}
	d.staged[int32(i)] = h
}

// takeStaged returns what putStaged was given.
func (q *planner) takeStaged(d *saving, i int) stagedShard {
	q.mu.Lock()
	defer q.mu.Unlock()
	h := d.staged[int32(i)]
	delete(d.staged, int32(i))
	return h
}

// saveStaged saves to next the blocks with shards on the device, by way of staging memory,
// and returns the other shards.
func (d *saving) saveStaged(which []int32) []int32 {
	blocks, rest := onDevice(which, d.Shard)
	if len(blocks) == 0 {
		return rest
	}
	d.s.group.Go(func() {
		for _, block := range blocks {
			mem, err := d.s.staging.take(d.Context())
			if err != nil {
				for _, i := range block.which {
					d.Settle(int(i), err)
				}
				continue
			}
			d.s.group.Go(func() { d.saveBlock(mem, block) })
		}
	})
	return rest
}

// saveBlock saves shards of one block, those on the device by way of mem. A shard that is
// there twice is saved twice, one after the other.
func (d *saving) saveBlock(mem *stagedBlock, block *blockShards) {
	defer mem.release()
	for left := block.which; len(left) > 0; {
		var once []int32
		left, once = splitTwice(left, d.Shard)
		shards, which, held := d.gather(mem, once)
		if len(shards) == 0 {
			if held {
				d.settleAll(left, fmt.Errorf("%w: the device did not answer", kv.ErrTimeout))
				return
			}
			continue
		}
		t, err := d.s.next.Save(d.Context(), shards)
		if err != nil {
			d.settleAll(which, err)
			continue
		}
		for n, err := range t.All() {
			if errors.Is(err, kv.ErrAbandoned) && d.Shard(int(which[n])).Device != nil {
				mem.hold() // for ever: the storage may still read there
				held = true
				err = fmt.Errorf("%w: %v", kv.ErrTimeout, err)
			}
			d.Settle(int(which[n]), err)
		}
		if held {
			d.settleAll(left, fmt.Errorf("%w: staging memory is still in use", kv.ErrTimeout))
			return
		}
	}
}

func (d *saving) settleAll(which []int32, err error) {
	for _, i := range which {
		d.Settle(int(i), err)
	}
}

// splitTwice returns the shards without those that come a second time, and these.
func splitTwice(which []int32, shard func(i int) kv.Shard) (twice, once []int32) {
	seen := map[int]bool{}
	for _, i := range which {
		if index := shard(int(i)).Index; seen[index] {
			twice = append(twice, i)
		} else {
			seen[index] = true
			once = append(once, i)
		}
	}
	return twice, once
}

// gather copies shards from the device to mem and waits for that. It settles those that
// fail, and reports whether mem is held because a copy was abandoned.
func (d *saving) gather(mem *stagedBlock, from []int32) (shards []kv.Shard, which []int32, held bool) {
	errs := make([]error, len(from))
	var copies sync.WaitGroup
	for n, i := range from {
		shard := d.Shard(int(i))
		if shard.Device == nil {
			continue
		}
		mem.hold()
		copies.Add(1)
		d.s.mover.Begin(d.Context(), mover.Copy{
			Place: *shard.Device, Host: mem.shard(shard.Index), ToHost: true,
			Done: func(err error) {
				if errs[n] = err; !errors.Is(err, kv.ErrAbandoned) {
					mem.release()
				}
				copies.Done()
			},
			Late: mem.release,
		})
	}
	copies.Wait()
	for n, i := range from {
		shard := d.Shard(int(i))
		if errs[n] != nil {
			held = held || errors.Is(errs[n], kv.ErrAbandoned)
			d.Settle(int(i), errs[n])
			continue
		}
		if shard.Device != nil {
			shard.Buf, shard.Device = mem.shard(shard.Index), nil
		}
		shards, which = append(shards, shard), append(which, i)
	}
	return shards, which, held
}

// stagedBlock is staging memory for one block. It goes back when nothing holds it.
type stagedBlock struct {
	of    *staging
	mem   []byte
	holds atomic.Int32
}

// shard returns the memory for a shard.
func (m *stagedBlock) shard(index int) []byte {
	size := m.of.layout.ShardBytes
	return m.mem[int64(index)*size : int64(index+1)*size : int64(index+1)*size]
}

func (m *stagedBlock) hold() { m.holds.Add(1) }

func (m *stagedBlock) release() {
	if m.holds.Add(-1) == 0 {
		m.of.put(m)
	}
}
