package usrbio

import "testing"

func TestSlotsLowestFirst(t *testing.T) {
	for _, n := range []int{1, 2, 63, 64, 65, 128, 200} {
		s := newSlots(n)
		if s.inFlight() != 0 {
			t.Fatalf("%d slots: %d in flight at the start", n, s.inFlight())
		}
		for want := range n {
			if got := s.lowest(); got != want {
				t.Fatalf("%d slots: lowest %d, want %d", n, got, want)
			}
			s.take(want, issued{ticket: uint64(want) + 1, userdata: uint64(want) * 3, length: 1})
		}
		if got := s.lowest(); got != -1 || s.inFlight() != n {
			t.Fatalf("%d slots: lowest %d of a full set of %d", n, got, s.inFlight())
		}
		for i := n - 1; i >= 0; i-- { // each one freed is the lowest
			if r, ok := s.release(i, uint64(i)+1); !ok || r.userdata != uint64(i)*3 {
				t.Errorf("%d slots: %d came back as %+v, %v", n, i, r, ok)
			}
			if got := s.lowest(); got != i {
				t.Errorf("%d slots: lowest %d after %d was freed", n, got, i)
			}
		}
		if s.inFlight() != 0 {
			t.Errorf("%d slots: %d in flight at the end", n, s.inFlight())
		}
	}
}

func TestSlotsRefuse(t *testing.T) {
	s := newSlots(65)
	s.take(0, issued{ticket: 5, userdata: 50, length: 500})
	for _, c := range []struct {
		i      int
		ticket uint64
	}{{-1, 5}, {1, 5}, {64, 0}, {65, 0}, {127, 0}, {128, 0}, {1 << 30, 0}, {-1 << 31, 0}, {0, 0}, {0, 4}} {
		if _, ok := s.release(c.i, c.ticket); ok {
			t.Errorf("slot %d was freed under ticket %d", c.i, c.ticket)
		}
	}
	r, ok := s.release(0, 5)
	if !ok || r.userdata != 50 || r.length != 500 {
		t.Errorf("got %+v, %v", r, ok)
	}
	if _, ok := s.release(0, 5); ok {
		t.Error("slot 0 was freed twice")
	}
}
