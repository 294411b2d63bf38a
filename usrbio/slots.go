package usrbio

import (
	"math/bits"
	"sync/atomic"
)

// slots tells which argument slots of a ring are in flight, and remembers what
// was asked in each. One goroutine takes slots (the preparer), one gives them
// back (the waiter); a busy bit handed from one to the other carries the
// request record with it.
type slots struct {
	busy    []atomic.Uint64 // bit i%64 of word i/64: slot i is in flight
	request []request
	n       int
}

// request is the side of a request that the daemon cannot touch. Written while
// the slot is free, read while it is busy.
type request struct {
	ticket   uint64 // what stands in the ring as userdata: unique to the request
	userdata uint64
	length   int64
}

func newSlots(n int) slots {
	s := slots{busy: make([]atomic.Uint64, (n+63)/64), request: make([]request, n), n: n}
	if n%64 != 0 { // slots beyond the end are never free
		s.busy[len(s.busy)-1].Store(^uint64(0) << (n % 64))
	}
	return s
}

// lowest is the lowest free slot, or -1. It stays free until take: only the
// preparer takes.
func (s *slots) lowest() int {
	for w := range s.busy {
		if free := ^s.busy[w].Load(); free != 0 {
			return w*64 + bits.TrailingZeros64(free)
		}
	}
	return -1
}

// take marks slot i in flight as r.
func (s *slots) take(i int, r request) {
	s.request[i] = r
	s.busy[i/64].Or(1 << (i % 64))
}

// give frees slot i if it is in flight under that ticket.
func (s *slots) give(i int, ticket uint64) (r request, ok bool) {
	if i < 0 || i >= s.n || s.busy[i/64].Load()&(1<<(i%64)) == 0 || s.request[i].ticket != ticket {
		return request{}, false
	}
	r = s.request[i]
	s.busy[i/64].And(^uint64(1 << (i % 64)))
	return r, true
}

// abandon frees slot i, which was taken and not handed to the daemon.
func (s *slots) abandon(i int) { s.busy[i/64].And(^uint64(1 << (i % 64))) }

// inFlight counts the busy slots.
func (s *slots) inFlight() int {
	n := s.n - 64*len(s.busy) // the bits beyond the end
	for w := range s.busy {
		n += bits.OnesCount64(s.busy[w].Load())
	}
	return n
}
