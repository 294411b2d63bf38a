package httpserver

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// A confirmation that lay unread while this process was stopped, or its machine suspended, may be from before its
// writer's reservation ended, and the page may be reserved again for the same key, with another writer that has
// not finished. So confirmations are refused for a while after a stop: the blocks are not saved.

const (
	// notePeriod is how often stops notes that the process runs.
	notePeriod = 250 * time.Millisecond
	// leastStop is the least stop that counts, however short the quarantine is: busy machines have shorter ones.
	leastStop = time.Second
	// doubtAfterStop is for how long after a stop a confirmation may be one that lay unread.
	doubtAfterStop = 5 * time.Second
)

// errStopped is an answer that clients do not repeat their request after.
var errStopped = refusal{http.StatusConflict, "the page service was stopped or suspended for a while, and others may have been given these pages meanwhile: nothing is saved"}

// stops knows when the process did not run.
type stops struct {
	clock func() time.Duration
	most  time.Duration // a longer stop counts; 0: none does

	mu      sync.Mutex
	watched bool          // by watch; else nobody knows
	noted   time.Duration // when the process ran last
	until   time.Duration // when the doubt ends after the last stop
}

func newStops(clock func() time.Duration, times pageservice.Options) *stops {
	s := &stops{clock: clock}
	if times != (pageservice.Options{}) {
		s.most = max(times.Quarantine/2, leastStop) // clients that are late have the other half
	}
	return s
}

// watch notes that the process runs, until ctx ends. begin was called.
func (s *stops) watch(ctx context.Context) {
	tick := time.NewTicker(notePeriod)
	defer tick.Stop()
	for {
		s.note()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

func (s *stops) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watched, s.noted = true, s.clock()
}

// note returns whether the process was stopped a moment ago.
func (s *stops) note() (doubt bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.watched || s.most == 0 {
		return false
	}
	now := s.clock()
	if now-s.noted > s.most {
		s.until = now + doubtAfterStop
	}
	s.noted = now
	return now < s.until
}

// refuses returns why a request may not be executed, or sent to the leader, now.
func (s *Server) refuses(to *route) error {
	if to.writes && s.stops.note() {
		return errStopped
	}
	return nil
}
