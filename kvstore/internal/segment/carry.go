package segment

import (
	"cmp"
	"errors"
	"slices"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// carryBytes is how much is carried at once, unless one block is more.
const carryBytes = 16 << 20

// carry copies a segment's hottest blocks to the segment that is being written. The copy
// replaces the block in the table when its head is written. After a crash before the old
// segment's next generation both are on the disk, and the one of the newer generation
// counts.
//
// Slots are taken before anything is read: the segment that is being written has just been
// begun, and saves would soon have filled it. If there are too few slots, fewer blocks are
// carried, because the purpose is to make space.
func (s *Store) carry(old *segment) {
	c := &carrier{s: s, old: old}
	var copies []copying
	for _, h := range s.hottest(old) {
		to, ok := s.take()
		if !ok {
			break
		}
		copies = append(copies, copying{from: place{old, h.slot}, to: to, key: h.key})
	}
	if len(copies) == 0 {
		return
	}
	stride := int(s.geo.strideBytes)
	atOnce := min(len(copies), max(1, carryBytes/stride))
	mem, err := anonymous(atOnce * stride)
	if err != nil {
		s.log.Warn("segment store: nothing is carried forward", "err", err)
		c.stopped = true
	}
	for len(copies) > 0 {
		n := min(atOnce, len(copies))
		c.copies = copies[:n]
		for i := range c.copies {
			if c.copies[i].failed = c.stopped; !c.stopped {
				c.copies[i].buf = mem[i*stride : (i+1)*stride : (i+1)*stride]
			}
		}
		c.copyAll()
		copies = copies[n:]
	}
	if err == nil && !c.abandoned {
		_ = unix.Munmap(mem)
	}
}

// heat is how much a slot was used.
type heat struct {
	key        kv.Key
	slot       int
	hits, last uint32
}

// hottest returns the slots to carry, the best first: those that were loaded most often
// since they were written, and among these the ones that were loaded last.
func (s *Store) hottest(seg *segment) []heat {
	most := int(s.o.CarryFraction * float64(s.geo.slots))
	if most <= 0 {
		return nil
	}
	var hot []heat
	s.mu.RLock()
	for i := range s.geo.slots {
		at := seg.first + uint32(i)
		if hits := s.table.slots[at].hits.Load(); hits > 0 && s.table.has(at) {
			hot = append(hot, heat{s.table.slots[at].key, i, hits, s.table.slots[at].last.Load()})
		}
	}
	s.mu.RUnlock()
	slices.SortFunc(hot, func(a, b heat) int {
		return cmp.Or(cmp.Compare(b.hits, a.hits), cmp.Compare(b.last, a.last))
	})
	return hot[:min(most, len(hot))]
}

// carrier copies some blocks at once.
type carrier struct {
	s         *Store
	old       *segment
	copies    []copying
	abandoned bool // the storage may still use the memory
	stopped   bool // no more are copied
}

// copying is a block that is being copied from one slot to another.
type copying struct {
	from, to place
	key      kv.Key
	buf      []byte // the whole slot
	failed   bool
	headed   bool // its head may be on the disk
}

func (c *carrier) copyAll() {
	g := &c.s.geo
	dataBytes := g.strideBytes - blockhead.Size
	c.move(func(p *copying) transfer.Op {
		return transfer.Op{File: c.old.data, Offset: g.slotAt(p.from.slot), Buf: p.buf}
	})
	for i := range c.copies {
		if p := &c.copies[i]; !p.failed {
			p.failed = !c.renew(p)
		}
	}
	c.move(func(p *copying) transfer.Op {
		return transfer.Op{File: p.to.seg.data, Offset: g.slotAt(p.to.slot), Buf: p.buf[:dataBytes], Write: true}
	})
	if c.s.lockPlaces(c.s.group.Closing()) == nil {
		defer c.s.unlockPlaces()
	} else {
		c.stopped = true
	}
	for i := range c.copies {
		p := &c.copies[i]
		p.failed = p.failed || c.stopped || !c.s.isAt(p.key, p.from)
		p.headed = !p.failed
	}
	c.move(func(p *copying) transfer.Op {
		return transfer.Op{File: p.to.seg.data, Offset: g.headAt(p.to.slot), Buf: p.buf[dataBytes:], Write: true}
	})
	for i := range c.copies {
		c.finish(&c.copies[i])
	}
}

// isAt reports whether the table has a block in that place. It may have been deleted, or
// quarantined.
func (s *Store) isAt(key kv.Key, p place) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	at, ok := s.table.find(key)
	return ok && at == p.at()
}

// move makes one move for each copy that has not failed, and waits for all.
func (c *carrier) move(op func(*copying) transfer.Op) {
	var ops []transfer.Op
	var all sync.WaitGroup
	writing := false
	errs := make([]error, len(c.copies))
	for i := range c.copies {
		p := &c.copies[i]
		if p.failed {
			continue
		}
		o := op(p)
		all.Add(1)
		o.Done = func(n int, err error) {
			errs[i] = wholly(n, len(o.Buf), err)
			all.Done()
		}
		if writing = o.Write; writing {
			o = c.s.pinned(p.to.seg, o)
		}
		ops = append(ops, o)
	}
	if len(ops) == 0 {
		return
	}
	c.s.engine.Do(c.s.group.Closing(), ops)
	all.Wait()
	for i, err := range errs {
		if err == nil {
			if writing {
				c.s.worked(false)
			}
			continue
		}
		p := &c.copies[i]
		p.failed = true
		c.abandoned = c.abandoned || errors.Is(err, kv.ErrAbandoned)
		if writing {
			c.s.blame(p.to.seg, false, err)
		}
		if c.s.group.Err() != nil || c.abandoned {
			c.stopped = true
		}
	}
}

// renew checks a block that was read, and gives it a head of the new generation.
func (c *carrier) renew(p *copying) bool {
	s := c.s
	raw := p.buf[len(p.buf)-blockhead.Size:]
	var head blockhead.Head
	if err := s.checkBlock(&head, raw, p.buf, p.key, s.generationOf(c.old)); err != nil {
		s.log.Warn("segment store: a block is damaged", "file", c.old.file.Name(), "key", p.key, "err", err)
		s.quarantine(p.from)
		return false
	}
	head.Sequence = s.generationOf(p.to.seg)
	head.Encode(raw)
	return true
}

// checkBlock returns what is wrong with a whole block and its head.
func (s *Store) checkBlock(head *blockhead.Head, raw, data []byte, key kv.Key, generation uint64) error {
	if err := s.checkHead(head, raw, key, generation); err != nil {
		return err
	}
	size := s.o.Layout.ShardBytes
	for i := range s.o.Layout.Shards() {
		if err := head.Verify(i, data[int64(i)*size:int64(i+1)*size]); err != nil {
			return err
		}
	}
	return nil
}

// finish enters a copy into the table, unless the block is gone by now, and ends the
// writing of its slot.
func (c *carrier) finish(p *copying) {
	s := c.s
	s.mu.Lock()
	if at, ok := s.table.find(p.key); !p.failed && ok && at == p.from.at() {
		s.setFound(p.key, p.to)
		c.old.stale = true
		for _, l := range s.listings {
			l.carried = append(l.carried, p.key)
		}
	} else if p.headed {
		s.leaveStale(p.to, p.key)
	}
	s.releaseLocked(p.to)
	s.mu.Unlock()
	s.unpin(p.to.seg)
}
