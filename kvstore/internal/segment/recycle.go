package segment

import (
	"time"
)

// drainPatience is how long the keeper waits for the readers of a segment before it
// recycles the next one.
const drainPatience = time.Second

// keep keeps one segment ready, so that writers need not wait when they have filled
// theirs. Filling one takes a while; that is the time that recycling has.
func (s *Store) keep() {
	for s.group.Err() == nil {
		seg, enough := s.nextFree()
		switch {
		case enough:
			s.waitFor(s.keeperWanted, 0)
		case seg != nil:
			s.pause()
			if err := s.prepare(seg); err != nil {
				s.log.Warn("segment store: a segment cannot be begun", "file", seg.file.Name(), "err", err)
			}
		default:
			s.recycle()
		}
	}
}

// waitFor waits for a poke, for Close or, if patience is not 0, until it is over. It
// reports whether it is.
func (s *Store) waitFor(c chan struct{}, patience time.Duration) (over bool) {
	var expired <-chan time.Time
	if patience > 0 {
		timer := time.NewTimer(patience)
		defer timer.Stop()
		expired = timer.C
	}
	select {
	case <-c:
	case <-expired:
		return true
	case <-s.group.Closing().Done():
	}
	return false
}

// nextFree takes a free segment, unless enough are ready.
func (s *Store) nextFree() (seg *segment, enough bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.ready) > 0 {
		return nil, true
	}
	if len(s.free) == 0 {
		return nil, false
	}
	seg, s.free = s.free[0], s.free[1:]
	return seg, false
}

// headerOf returns the header of a segment in a generation of ours.
func (s *Store) headerOf(seg *segment, generation uint64) record {
	return record{
		number: seg.number, namespace: s.o.Namespace, generation: generation,
		layout: s.o.Layout, segmentBytes: s.geo.segmentBytes,
	}
}

// prepare begins a segment's new generation. The kernel has the header before the first
// slot is given out, so heads of the old generation no longer count when the first of
// their blocks is overwritten.
func (s *Store) prepare(seg *segment) error {
	if s.lockPlaces(s.group.Closing()) != nil {
		return nil
	}
	defer s.unlockPlaces()
	s.mu.Lock()
	if seg.pins.Load() > 0 {
		// A Delete has timed out, and its call may still write to the header.
		seg.state = draining
		s.freeLocked(seg)
		s.mu.Unlock()
		return nil
	}
	s.generation++
	generation := s.generation
	s.mu.Unlock()
	header := s.headerOf(seg, generation)
	seg.disk.Lock()
	err := s.writeAt(seg, header.encode(headerMagic), 0)
	if err == nil {
		seg.indexed, seg.unread = 0, false // else the old generation may still count
	}
	seg.disk.Unlock()

	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		// It goes behind the other full ones, without a block, and is tried again in its
		// turn.
		seg.state, seg.sealed, seg.unbegun = full, true, true
		s.full = append(s.full, seg)
		s.failLocked(err)
		return err
	}
	s.checkGeneration(seg, generation)
	seg.generation, seg.next, seg.state = generation, 0, ready
	seg.sealed, seg.stale, seg.blank = false, false, false
	seg.unflushed = time.Time{}
	seg.failed, seg.unbegun, seg.foreign = false, false, false
	s.ready = append(s.ready, seg)
	s.wakeSavesLocked()
	return nil
}

// recycle evicts the segment that was filled first, but for the blocks that are carried
// forward, and waits for its readers.
func (s *Store) recycle() {
	s.pause()
	if s.proveWrites(); s.waitsForSave() {
		return
	}
	seg := s.takeVictim()
	if seg == nil && s.inTrouble() {
		s.waitFor(s.keeperWanted, troublePause) // until there is a segment to try
		return
	}
	if seg == nil {
		// All segments have unfinished blocks or readers. Saves may be waiting, so blocks
		// whose shards stopped coming are dropped earlier than otherwise.
		if s.waitFor(s.keeperWanted, max(s.o.Timeout/30, 1)) {
			s.drop(s.unfinished.Expire(s.o.Timeout / 30))
		}
		return
	}
	s.carry(seg)
	if s.group.Err() != nil {
		return // its blocks stay for the next process
	}
	if !s.mayEvict(seg) {
		return
	}
	s.evict(seg)
	for patience := time.Now().Add(drainPatience); ; {
		s.mu.RLock()
		left := seg.state != draining
		s.mu.RUnlock()
		if left || s.group.Err() != nil || s.waitFor(s.keeperWanted, max(time.Until(patience), 1)) {
			return
		}
	}
}

// mayEvict reports whether the blocks of a victim may go, and puts it back where they may
// not: something could not be written since it was taken.
func (s *Store) mayEvict(seg *segment) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.keepsAllLocked() || s.emptyLocked(seg) {
		return true
	}
	s.full = append([]*segment{seg}, s.full...)
	return false
}

// takeVictim removes the segment to recycle next from those that are full: one that failed
// before it had a block; else, unless all blocks are to be kept, the one that was filled
// first. One that has an unfinished block is passed over, but none of the newer half is
// taken instead.
func (s *Store) takeVictim() *segment {
	s.mu.Lock()
	defer s.mu.Unlock()
	keepsAll := s.keepsAllLocked()
	for i, seg := range s.full {
		if (seg.failed || seg.unbegun && keepsAll) && seg.writing == 0 && s.emptyLocked(seg) {
			return s.takeFullLocked(i)
		}
	}
	if keepsAll {
		return nil
	}
	for i, seg := range s.full[:(len(s.full)+1)/2] {
		if seg.writing == 0 {
			return s.takeFullLocked(i)
		}
	}
	return nil
}

// takeFullLocked removes one of the full segments. The store's lock is held.
func (s *Store) takeFullLocked(i int) *segment {
	seg := s.full[i]
	s.full = append(s.full[:i:i], s.full[i+1:]...)
	return seg
}

// evictSlots is how many slots are evicted before others get the lock.
const evictSlots = 512

// evict removes a segment's blocks from the table. Readers that have found a block keep the
// segment as it is until they have finished; there cannot be new ones.
func (s *Store) evict(seg *segment) {
	s.mu.Lock()
	seg.stale = true
	s.mu.Unlock()
	for first := 0; first < s.geo.slots; first += evictSlots {
		s.mu.Lock()
		for i := first; i < min(first+evictSlots, s.geo.slots); i++ {
			if s.table.remove(seg.first + uint32(i)) {
				s.count.EvictedBlocks.Add(1)
			}
		}
		s.mu.Unlock()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seg.state = draining
	s.freeLocked(seg)
}
