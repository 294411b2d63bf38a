package segment

import (
	"context"
	"fmt"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A deleted block must not come back when the directory is opened again, so its head is
// wiped wherever one may be. The table knows the newest place of a block. Older heads,
// harmless until a deletion, remain on the disk in two cases:
//
//   - The blocks of a segment were evicted, and its next generation has not begun. The
//     segment as a whole is then made blank, by wiping its header.
//   - A block was carried to another segment, a head was written and the block not
//     kept, or a head could not be wiped. Such segments are marked (segment.stale) and
//     searched.
//
// The format has holes and blank segments anyway.

// deleteAtOnce bounds how many blocks are deleted before the keeper gets its turn.
const deleteAtOnce = 512

// Delete is kv.Store's. When it returns nil, the kernel has all that it wrote, which a
// kill -9 does not take back.
func (s *Store) Delete(ctx context.Context, keys []kv.Key) error {
	if err := s.group.Enter(); err != nil {
		return err
	}
	defer s.group.Leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	ctx, done := s.group.With(ctx)
	defer done()
	for len(keys) > 0 {
		n := min(deleteAtOnce, len(keys))
		if err := s.deleteSome(ctx, keys[:n]); err != nil {
			return s.group.Explain(err)
		}
		keys = keys[n:]
	}
	return nil
}

// lockPlaces excludes Delete and the keeper from each other. The keeper holds it while
// it moves blocks to other places in the table, or begins a generation.
func (s *Store) lockPlaces(ctx context.Context) error {
	select {
	case s.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (s *Store) unlockPlaces() { <-s.places }

func (s *Store) deleteSome(ctx context.Context, keys []kv.Key) error {
	bound, cancel := context.WithTimeoutCause(ctx, s.o.Timeout, kv.ErrTimeout)
	defer cancel()
	if err := s.lockPlaces(bound); err != nil {
		return err
	}
	defer s.unlockPlaces()
	found, evicted, stale := s.forget(keys)
	doomed := make(map[kv.Key]bool, len(keys))
	for _, key := range keys {
		doomed[key] = true
	}
	for seg := range stale {
		found[seg] = append(found[seg], s.staleSlots(seg, doomed)...)
	}
	var failed error
	for seg, slots := range found {
		err := s.wipe(seg, slots)
		if err != nil {
			s.mu.Lock()
			seg.stale = true // the table does not know these slots any more
			s.mu.Unlock()
		}
		if err != nil && failed == nil {
			failed = fmt.Errorf("segment store: deleting blocks in %s: %w", seg.file.Name(), err)
		}
		s.unpin(seg)
	}
	for _, seg := range evicted {
		if err := s.makeBlank(seg); err != nil && failed == nil {
			failed = fmt.Errorf("segment store: wiping the header of %s: %w", seg.file.Name(), err)
		}
		s.unpin(seg)
	}
	return failed
}

// forget removes blocks from the table. It returns segments, each pinned once: found has
// those with slots to wipe, evicted those whose blocks were all evicted, and stale says
// which of found have to be searched, too.
func (s *Store) forget(keys []kv.Key) (found map[*segment][]int, evicted []*segment, stale map[*segment]bool) {
	found, stale = map[*segment][]int{}, map[*segment]bool{}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range keys {
		if at, ok := s.table.find(key); ok {
			seg := s.segmentOf(at)
			s.table.remove(at)
			found[seg] = append(found[seg], int(at-seg.first))
		}
	}
	for _, seg := range s.segments {
		switch {
		case seg.state == draining || seg.state == free:
			if !seg.blank {
				seg.pins.Add(1)
				evicted = append(evicted, seg)
			}
			continue
		case seg.stale:
			stale[seg] = true
			if found[seg] == nil {
				found[seg] = []int{}
			}
		}
		if found[seg] != nil {
			seg.pins.Add(1)
		}
	}
	return found, evicted, stale
}

// staleSlots finds the slots of a segment that may have an older head of a block.
func (s *Store) staleSlots(seg *segment, keys map[kv.Key]bool) (slots []int) {
	for first := 0; first < s.geo.slots; first += evictSlots {
		s.mu.RLock()
		for i := first; i < min(first+evictSlots, s.geo.slots); i++ {
			if at := seg.first + uint32(i); keys[s.table.slots[at].key] && !s.table.has(at) {
				slots = append(slots, i)
			}
		}
		s.mu.RUnlock()
	}
	return slots
}

// leaveStale notes that a slot may have a whole head of a block that the table does not
// have there. The store's lock is held.
func (s *Store) leaveStale(p place, key kv.Key) {
	s.table.slots[p.at()].key = key
	p.seg.stale = true
}

// wipeAtOnce is how many heads are wiped by one call: it must not last as long as the
// timeout.
const wipeAtOnce = 64

// wipe turns slots that are no longer in the table into holes on the disk. The index
// comes first, page by page so that the other pages stay valid: a slot that it names has
// a head. The caller pins the segment.
func (s *Store) wipe(seg *segment, slots []int) error {
	seg.disk.Lock()
	defer seg.disk.Unlock()
	pages := map[int][]byte{}
	for _, slot := range slots {
		n := slot / indexSlots
		if n >= seg.indexed || pages[n] != nil {
			continue
		}
		page := make([]byte, pageBytes)
		if !seg.unread { // else the next Open is to read the heads again: there may be more than the table knows
			s.fillIndex(seg, n, page)
		}
		pages[n] = page
	}
	for n, page := range pages {
		if err := s.writeAt(seg, page, s.geo.indexAt()+int64(n)*pageBytes); err != nil {
			return err
		}
	}
	for len(slots) > 0 {
		some := slots[:min(wipeAtOnce, len(slots))]
		slots = slots[len(some):]
		err := s.call(seg, func() error {
			var nothing [blockhead.Size]byte
			for _, slot := range some {
				if _, err := seg.file.WriteAt(nothing[:], s.geo.headAt(slot)); err != nil {
					return err
				}
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// makeBlank wipes the header of a segment whose blocks were evicted. The caller pins it
// and has locked places.
func (s *Store) makeBlank(seg *segment) error {
	seg.disk.Lock()
	defer seg.disk.Unlock()
	if err := s.writeAt(seg, make([]byte, pageBytes), 0); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	seg.blank = true
	return nil
}
