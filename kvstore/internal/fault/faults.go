package fault

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Method is where a fault may strike: each shard of a Load or a Save, each key of a
// Lookup, a LookupPrefix or a Delete, each key that Keys yields, each Flush and Close.
type Method int

// The methods that may fail.
const (
	Lookup Method = iota
	LookupPrefix
	Load
	Save
	Flush
	Close
	Delete
	Keys
)

// Fault is something that goes wrong. When it strikes, Delay comes first, then Hold, then
// the first of Err, Drop and Flip that is set.
type Fault struct {
	Method Method

	// Where reports whether it may strike: at a shard of a Load or Save by its key and
	// index, elsewhere by the key. nil: everywhere.
	Where func(key kv.Key, index int) bool

	Skip   int     // how many it spares first
	Count  int     // how often it strikes; 0: without end
	Chance float64 // the probability that it strikes; 0: always
	Seed   uint64  // of Chance: the same calls in the same order give the same result

	Delay time.Duration   // cut short by the batch's end
	Hold  <-chan struct{} // wait until it is closed, or the batch or the store ends
	Err   error           // fail with it: kv.ErrFull, kv.ErrTimeout, an errno
	Drop  bool            // do nothing and report success
	Flip  bool            // change a bit of what was loaded; invert what was looked up
}

// fault is a Fault and how often it was met and has struck.
type fault struct {
	Fault
	seen, hits int
}

// hit is what goes wrong with one shard or key.
type hit struct {
	delay      time.Duration
	holds      []<-chan struct{}
	err        error
	drop, flip bool
	random     uint64 // which bit
}

// none reports whether nothing goes wrong.
func (h *hit) none() bool {
	return h.delay == 0 && h.holds == nil && h.err == nil && !h.drop && !h.flip
}

// slow reports whether the shard comes to next, if not at once.
func (h *hit) slow() bool { return h.holds == nil && h.err == nil && !h.drop }

// strike lets every fault strike.
func (s *Store) strike(m Method, key kv.Key, index int) (h hit) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.faults {
		if f.Method == m && (f.Where == nil || f.Where(key, index)) {
			f.strike(&h)
		}
	}
	return h
}

func (f *fault) strike(h *hit) {
	n := f.seen
	f.seen++
	rng := rand.New(rand.NewPCG(f.Seed, uint64(n)))
	if n < f.Skip || f.Count > 0 && f.hits == f.Count || f.Chance > 0 && rng.Float64() >= f.Chance {
		return
	}
	f.hits++
	h.delay += f.Delay
	if f.Hold != nil {
		h.holds = append(h.holds, f.Hold)
	}
	if h.err == nil {
		h.err = f.Err
	}
	h.drop, h.flip, h.random = h.drop || f.Drop, h.flip || f.Flip, rng.Uint64()
}

// before does what comes before the call itself: it delays, holds or fails.
func (h *hit) before(ctx context.Context, quit <-chan struct{}) error {
	waits := h.holds
	if h.delay > 0 {
		over := make(chan struct{})
		timer := time.AfterFunc(h.delay, func() { close(over) })
		defer timer.Stop()
		waits = append([]<-chan struct{}{over}, waits...)
	}
	for _, over := range waits {
		select {
		case <-over:
		case <-ctx.Done():
			return ctx.Err()
		case <-quit:
			return kv.ErrClosed
		}
	}
	return h.err
}

// flipBit changes one bit of buf.
func (h *hit) flipBit(buf []byte) {
	bit := h.random % (uint64(len(buf)) * 8)
	buf[bit/8] ^= 1 << (bit % 8)
}
