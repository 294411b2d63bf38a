//go:build invariants

package segment

import "testing"

// sees checks that fn violates an invariant.
func sees(t *testing.T, what string, fn func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: not noticed", what)
		}
	}()
	fn()
}

func TestBrokenInvariantsAreSeen(t *testing.T) {
	s := open(t, options(t.TempDir(), small, 5, 4))
	save(t, s, keyOf(0))
	waitReady(t, s)
	seg := s.segmentWith(t, keyOf(0))
	s.mu.Lock()
	defer s.mu.Unlock()
	sees(t, "a generation is given twice", func() { s.checkGeneration(s.ready[0], s.generation) })
	sees(t, "a segment with blocks begins a generation", func() { s.checkGeneration(seg, s.generation+1) })
	sees(t, "a segment with blocks is free", func() { s.checkEmpty(seg) })
	sees(t, "a block is in a slot that was not given out", func() { s.setFound(keyOf(1), place{seg, seg.next}) })
	sees(t, "a block is in a segment that is not written to", func() { s.setFound(keyOf(1), place{s.ready[0], 0}) })
	sees(t, "more slots are released than were taken", func() { s.releaseLocked(place{s.ready[0], 0}) })
	s.ready[0].writing = 0
	sees(t, "a segment loses more pins than it has", func() { s.unpin(s.ready[0]) })
	s.ready[0].pins.Store(0)
}
