package usrbio

import (
	"math/bits"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// slots records which argument slots of a ring are in flight and what was
// requested in each. The slots themselves are in the ring's memory, where
// Ring.publish fills them. One goroutine at a time takes slots (the preparer) and one
// releases them (the waiter); handing over the busy bit hands over the record, too.
type slots struct {
	busy   []atomic.Uint64 // bit i%64 of word i/64: slot i is in flight
	issued []issued
	n      int
}

// issued is the part of a request that the daemon cannot touch. It is written while
// the slot is free and read while it is busy.
type issued struct {
	ticket   uint64 // the userdata in the ring: unique to the request
	userdata uint64
	length   int64
	iov      *Iov // only in builds that assert invariants
}

func newSlots(n int) slots {
	s := slots{busy: make([]atomic.Uint64, (n+63)/64), issued: make([]issued, n), n: n}
	if n%64 != 0 { // slots beyond the end are never free
		s.busy[len(s.busy)-1].Store(^uint64(0) << (n % 64))
	}
	return s
}

// lowest returns the lowest free slot, or -1. The slot stays free until take,
// because only the preparer takes slots.
func (s *slots) lowest() int {
	for w := range s.busy {
		if free := ^s.busy[w].Load(); free != 0 {
			return w*64 + bits.TrailingZeros64(free)
		}
	}
	return -1
}

// take marks slot i in flight as r.
func (s *slots) take(i int, r issued) {
	if invariants.Enabled {
		invariants.Check(!s.isBusy(i), "slot %d is taken while it is in flight", i)
		invariants.Check(r.ticket > s.issued[i].ticket, "slot %d: ticket %d after %d", i, r.ticket, s.issued[i].ticket)
		invariants.Check(r.length > 0, "slot %d: a request of %d bytes", i, r.length)
		r.iov.hold(1)
	}
	s.issued[i] = r
	s.busy[i/64].Or(1 << (i % 64))
}

// release frees slot i if it is in flight under that ticket.
func (s *slots) release(i int, ticket uint64) (r issued, ok bool) {
	if i < 0 || i >= s.n || !s.isBusy(i) || s.issued[i].ticket != ticket {
		return issued{}, false
	}
	r = s.issued[i]
	if invariants.Enabled {
		r.iov.hold(-1)
	}
	s.busy[i/64].And(^uint64(1 << (i % 64)))
	return r, true
}

// abandon frees slot i, which was taken and not handed to the daemon.
func (s *slots) abandon(i int) {
	if invariants.Enabled {
		invariants.Check(s.isBusy(i), "slot %d is abandoned and was not taken", i)
		s.issued[i].iov.hold(-1)
	}
	s.busy[i/64].And(^uint64(1 << (i % 64)))
}

func (s *slots) isBusy(i int) bool { return s.busy[i/64].Load()&(1<<(i%64)) != 0 }

// inFlight returns the number of busy slots.
func (s *slots) inFlight() int {
	n := s.n - 64*len(s.busy) // the bits beyond the end
	for w := range s.busy {
		n += bits.OnesCount64(s.busy[w].Load())
	}
	if invariants.Enabled {
		invariants.Check(n >= 0 && n <= s.n, "%d of %d slots are in flight", n, s.n)
	}
	return n
}
