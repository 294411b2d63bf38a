package index

import (
	"fmt"
	"slices"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// checkEvery is the number of changes of a space after which a build that asserts
// invariants checks all its pages. It checks the sums after every change.
const checkEvery = 64

// assert panics, in a build that asserts invariants, if the pages of the space are not
// as Check wants them. It is called after a change, with the lock.
func (s *space) assert() {
	if !invariants.Enabled {
		return
	}
	for _, r := range s.ranks {
		sum := r.numFree() + r.reserved + r.keyed + r.quarantined
		invariants.Check(sum == r.numPages && min(r.numFree(), r.reserved, r.keyed, r.quarantined) >= 0,
			"rank %d: %d free, %d reserved, %d keyed and %d quarantined pages, of %d", r.id, r.numFree(), r.reserved, r.keyed, r.quarantined, r.numPages)
	}
	if s.changes++; s.changes%checkEvery == 0 {
		err := s.checkLocked()
		invariants.Check(err == nil, "%v: %v", s.name, err)
	}
}

// assertOwner panics, in a build that asserts invariants, if a page has another owner
// than the one from which it is about to pass.
func (r *rank) assertOwner(page uint32, is bool, want string) {
	if invariants.Enabled {
		invariants.Check(is, "rank %d: page %d has owner %#x, want %s", r.id, page, r.owner[page], want)
	}
}

// Check returns an error that describes what is inconsistent inside the index, if
// anything is: the tables of pages and of keys must agree, the counts must add up, and
// each key must be in the order of eviction once and not too late. It looks at every
// page, under the locks: it is for tests, and for builds that assert invariants.
func (x *Index) Check() error {
	used, frames := int64(0), int64(0)
	for _, s := range x.all() {
		if err := s.check(); err != nil {
			return fmt.Errorf("%v: %w", s.name, err)
		}
		used += s.used.Load()
		s.mu.RLock()
		frames += spaceBytes + int64(len(s.ranks))*rankBytes
		s.mu.RUnlock()
	}
	if frames != x.frames.Load() {
		return fmt.Errorf("spaces and ranks themselves take %d bytes, but %d are counted", frames, x.frames.Load())
	}
	if used != x.used.Load() {
		return fmt.Errorf("spaces use %d bytes of memory, but %d are counted", used, x.used.Load())
	}
	return nil
}

func (s *space) check() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.checkLocked()
}

func (s *space) checkLocked() error {
	need := uint32(s.world)
	for _, r := range s.ranks {
		if err := s.checkRank(r); err != nil {
			return fmt.Errorf("rank %d: %w", r.id, err)
		}
		if s.world == 0 && s.counts(r) {
			need++
		}
	}
	if need != s.need {
		return fmt.Errorf("%d ranks are needed, but need is %d", need, s.need)
	}
	nComplete := int64(0)
	if err := s.checkKeys(); err != nil {
		return err
	}
	for id, e := range s.entries.all {
		key := e.key
		on, counted := uint32(0), uint32(0)
		for _, r := range s.ranks {
			if r.has(id) {
				on++
				if s.counts(r) {
					counted++
				}
			}
		}
		complete := need > 0 && counted >= need
		if complete {
			nComplete++
		}
		switch {
		case e.on != on || e.counted != counted || e.complete != complete:
			return fmt.Errorf("%q: on %d, counted %d, complete %t; should be %d, %d, %t", key, e.on, e.counted, e.complete, on, counted, complete)
		case s.inflight == 0 && (e.removing || e.writing > 0 || on == 0):
			return fmt.Errorf("%q: removing %t, writing %d, on %d, and no change is under way", key, e.removing, e.writing, on)
		}
	}
	if nComplete != s.nComplete {
		return fmt.Errorf("%d keys are complete, but %d are counted", nComplete, s.nComplete)
	}
	return nil
}

// checkKeys checks that the key map finds each entry, and no other.
func (s *space) checkKeys() error {
	n := 0
	for id, e := range s.entries.all {
		n++
		if found, ok := s.byKey.find(&s.entries, hashOf(e.key), e.key); !ok || found != id || e.hash != hashOf(e.key) {
			return fmt.Errorf("%q is entry %d, found %d %t", e.key, id, found, ok)
		}
	}
	if n != s.byKey.len {
		return fmt.Errorf("the key map has %d keys, but there are %d", s.byKey.len, n)
	}
	return nil
}

// checkOrder checks that each key of a rank is in the order of eviction once, and not
// too late.
func (s *space) checkOrder(r *rank) error {
	listed := map[uint32]int{}
	for i, q := range []dueHeap{r.order.ready, r.order.waiting} {
		for _, d := range q {
			if !r.order.valid(d) {
				continue
			}
			listed[d.page]++
			o := r.owner[d.page]
			if o == 0 || o&heldBit != 0 {
				return fmt.Errorf("page %d is in an order of eviction, but belongs to no key", d.page)
			}
			e := s.entries.at(o - 1)
			if at := []int64{s.evictionPriority(e), s.evictableFrom(e)}[i]; d.at > at {
				return fmt.Errorf("%q is in queue %d at %d, should be at %d", e.key, i, d.at, at)
			}
		}
	}
	for page, o := range r.owner {
		if o == 0 || o&heldBit != 0 {
			continue
		}
		if e := s.entries.at(o - 1); listed[uint32(page)] != 1 && !e.unlisted {
			return fmt.Errorf("%q is in the order of eviction %d times", e.key, listed[uint32(page)])
		} else if e.unlisted && !e.busy() {
			return fmt.Errorf("%q is no longer busy, but in no order of eviction", e.key)
		}
	}
	return nil
}

// checkRank checks that the tables of a rank agree, and that its counts add up.
func (s *space) checkRank(r *rank) error {
	if err := s.checkOrder(r); err != nil {
		return err
	}
	var free, reserved, quarantined, keyed int64
	for page, o := range r.owner {
		switch {
		case o == 0:
			free++
		case o&heldBit != 0:
			h := r.holdOf(uint32(page))
			if h.state == writable {
				reserved++
			} else {
				quarantined++
			}
			if h.busy && s.inflight == 0 {
				return fmt.Errorf("page %d is busy, and no change is under way", page)
			}
		default:
			keyed++
			if r.page(o-1) != uint32(page)+1 {
				return fmt.Errorf("page %d has entry %d, which is at %d", page, o-1, r.page(o-1))
			}
		}
	}
	promised := int64(0)
	for i := range r.holds {
		if h := &r.holds[i]; h.state != 0 {
			promised += h.promise()
		}
	}
	if promised != r.promised {
		return fmt.Errorf("its holds promise %d bytes, but %d are counted", promised, r.promised)
	}
	free += r.numPages - int64(len(r.owner))
	if free != r.numFree() || reserved != r.reserved || quarantined != r.quarantined || keyed != r.keyed {
		return fmt.Errorf("free %d, reserved %d, quarantined %d, keyed %d; counted %d, %d, %d, %d",
			free, reserved, quarantined, keyed, r.numFree(), r.reserved, r.quarantined, r.keyed)
	}
	seen := map[uint32]bool{}
	for _, page := range append(slices.Clone(r.free), r.kept...) {
		if seen[page] || r.owner[page] != 0 {
			return fmt.Errorf("page %d is in the free lists twice, or has an owner", page)
		}
		seen[page] = true
	}
	for id, p := range r.pageOf {
		if p != 0 && p != pagePending && r.owner[p-1] != uint32(id)+1 {
			return fmt.Errorf("entry %d is at page %d, which has %d", id, p-1, r.owner[p-1])
		}
	}
	return nil
}
