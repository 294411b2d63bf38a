package segment

import (
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// state is where a segment is in its cycle of generations.
type state uint8

const (
	free     state = iota // nothing in it counts
	ready                 // its header says a generation of which it has no head yet
	active                // blocks are written to it
	full                  // all slots were given out, or writing has failed
	draining              // its blocks are not found any more, but are still being read
)

// segment is a file of slots.
type segment struct {
	number uint32
	first  uint32 // the table's slot that its first one is
	file   *os.File
	data   transfer.File

	// pins counts readers and writers of the segment. While there are any, no new
	// generation begins. Readers add a pin under the store's lock when they have found a
	// block, so there are no new ones once its blocks are out of the table.
	pins atomic.Int32

	// Guarded by Store.mu.
	state      state
	generation uint64 // changes only with no pin
	next       int    // the first slot not given out
	writing    int    // slots that were given out and are neither found nor holes
	sealed     bool
	unflushed  time.Time // since when the device has not been told to keep it; zero: it has
	stale      bool      // it may have heads of blocks that the table has elsewhere, or not at all
	blank      bool      // its header on the disk is wiped, or there never was one

	failed  bool // it could not be written to since its generation began
	unbegun bool // its next generation could not be begun: the header was not written
	foreign bool // at Open: it has blocks of another namespace

	// disk is held while the index is made from the table and written, so that an older
	// index never replaces a newer one.
	disk    sync.Mutex
	indexed int  // pages of the index that may be valid on the disk: those below
	unread  bool // at Open: something could not be read, so it may have blocks that the table does not know
}

// place is a slot of a segment.
type place struct {
	seg  *segment
	slot int
}

func (p place) at() uint32 { return p.seg.first + uint32(p.slot) }

// unpin removes a pin. The last one to do so makes a draining segment free.
func (s *Store) unpin(seg *segment) {
	pins := seg.pins.Add(-1)
	invariants.Check(pins >= 0, "%s has %d pins", seg.file.Name(), pins)
	if pins > 0 {
		return
	}
	// A read lock for all, and a second look by the last, cost less than a lock each
	// time.
	s.mu.RLock()
	last := seg.state == draining
	s.mu.RUnlock()
	if last {
		s.mu.Lock()
		s.freeLocked(seg)
		s.mu.Unlock()
	}
}

// freeLocked makes a draining segment free when it has no pins any more.
func (s *Store) freeLocked(seg *segment) {
	if seg.state == draining && seg.pins.Load() == 0 {
		s.checkEmpty(seg)
		seg.state = free
		s.free = append(s.free, seg)
		poke(s.keeperWanted)
	}
}

// poke wakes a goroutine that may have something to do.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// take gives out the next slot, if there is one. The caller has to release it.
func (s *Store) take() (place, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active == nil {
		if len(s.ready) == 0 {
			return place{}, false
		}
		s.active, s.ready = s.ready[0], s.ready[1:]
		s.active.state = active
		s.untested = s.active
		s.doubt.Store(true)
		poke(s.keeperWanted)
	}
	p := place{s.active, s.active.next}
	p.seg.next++
	p.seg.writing++
	p.seg.pins.Add(1)
	if p.seg.next == s.geo.slots {
		s.fillLocked(p.seg)
	}
	return p, true
}

// fillLocked ends the writing to a segment.
func (s *Store) fillLocked(seg *segment) {
	seg.state = full
	s.active = nil
	s.full = append(s.full, seg)
}

// release ends the writing of a slot, which now is in the table, or is a hole.
func (s *Store) release(p place) {
	s.mu.Lock()
	s.releaseLocked(p)
	s.mu.Unlock()
	s.unpin(p.seg)
}

func (s *Store) releaseLocked(p place) {
	p.seg.writing--
	invariants.Check(p.seg.writing >= 0, "%s has %d slots that are being written", p.seg.file.Name(), p.seg.writing)
	if p.seg.writing == 0 && p.seg.state == full {
		poke(s.sealerWanted)
		poke(s.keeperWanted)
	}
}

// setFound enters a block into the table, in a slot that was given out in the segment's
// generation. The store's lock is held.
func (s *Store) setFound(key kv.Key, p place) {
	if invariants.Enabled {
		isOpen := p.seg.state == active || p.seg.state == full
		invariants.Check(isOpen && p.seg.generation > 0 && p.slot < p.seg.next, "block %s is found in slot %d of %s, of which generation %d has given out %d, in state %d",
			key, p.slot, p.seg.file.Name(), p.seg.generation, p.seg.next, p.seg.state)
	}
	delete(s.unreadable, p.at()) // of the block that was there before
	s.table.put(key, p.at())
}

// checkEmpty asserts that no block is found in a segment. The store's lock is held.
func (s *Store) checkEmpty(seg *segment) {
	if !invariants.Enabled {
		return
	}
	for at := seg.first; at < seg.first+uint32(s.geo.slots); at++ {
		invariants.Check(!s.table.has(at), "%s is free, and has block %s", seg.file.Name(), s.table.slots[at].key)
	}
}

// checkGeneration asserts that a generation is later than those of all segments, and that
// the segment which gets it is not in use. The store's lock is held.
func (s *Store) checkGeneration(seg *segment, generation uint64) {
	if !invariants.Enabled {
		return
	}
	for _, other := range s.segments {
		invariants.Check(other.generation < generation, "generation %d is given, and %s has %d", generation, other.file.Name(), other.generation)
	}
	pins := seg.pins.Load()
	invariants.Check(pins == 0 && seg.writing == 0, "%s begins a generation with %d pins", seg.file.Name(), pins)
	s.checkEmpty(seg)
}
