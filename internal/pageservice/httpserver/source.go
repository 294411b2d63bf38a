package httpserver

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
)

// Source is what a Server answers from: an index, or another host, or neither for now.
type Source struct {
	// Index answers, if it is not nil. It remains the caller's, who closes it after the
	// server was switched to another source; requests under way then get 503.
	Index *index.Index
	// Valid reports whether an answer from Index still holds: nobody else may have given its
	// pages to others meanwhile. It is asked right before each answer is sent, and must not
	// wait. nil: always.
	Valid func() bool
	// Leader answers where there is no Index.
	Leader Forwarder
	// Why says why nobody answers, where there is neither.
	Why error
}

// errNotYet is Why where the caller gives no reason.
var errNotYet = errors.New("the page service has not started yet")

// Switch has the server answer from another source. Requests that were executed on the one
// before, and not yet answered, are answered from that one only as far as it is still Valid.
func (s *Server) Switch(to Source) {
	if to.Index == nil && to.Leader == nil && to.Why == nil {
		to.Why = errNotYet
	}
	s.source.Store(&to)
	s.writes.worked() // as far as is known of the new one
	if to.Index != nil {
		s.metrics.knowAll(to.Index)
	}
}

// index returns the index, or why this host answers from none.
func (s *Source) index() (*index.Index, error) {
	switch {
	case s.Index != nil:
		return s.Index, nil
	case s.Why != nil:
		return nil, refusal{http.StatusServiceUnavailable, s.Why.Error()}
	}
	return nil, errNotLeader
}

// errNotLeader is the answer to a request that another host has forwarded to one that does not lead
// either: it is not forwarded again.
var errNotLeader = refusal{http.StatusMisdirectedRequest, "this host does not lead the page service"}

// Answers grow old. A reader counts the time for which its location is protected from when it gets
// it, but the index from when it gave it. So an answer is not sent if that was too long ago: because
// the leader was slow, or because this process was stopped in between. The clock includes times
// when the machine was suspended.

// leastFresh is the least bound on the age of an answer, whatever the times are.
const leastFresh = time.Second

// stat returns the state of all spaces of this host's index; none where another host has it.
func (s *Server) stat(ctx context.Context) ([]pageservice.SpaceState, error) {
	if x := s.source.Load().Index; x != nil {
		return x.Stat(ctx)
	}
	return nil, nil
}

// freshness is for how long the answer to a request may be on its way; 0: any time. The
// quarantine is the margin for clients that are late, of which they keep half.
func (s *Server) freshness(to *route) time.Duration {
	if s.times == (pageservice.Options{}) {
		return 0
	}
	switch to.gives {
	case locations:
		return max(min(s.times.Lease, s.times.Quarantine)/2, leastFresh)
	case reservations:
		return max(min(s.times.Reserve, s.times.Quarantine)/2, leastFresh)
	case presence:
		return max(s.times.Hold, leastFresh)
	}
	return 0
}

// gives says what a route's answer promises for a time.
type gives int

const (
	nothing gives = iota
	locations
	reservations
	presence
)

// errOld says that an answer came too late to be sent.
var errOld = refusal{http.StatusServiceUnavailable, "the answer came too late to be used"}

// errLost says that this host no longer leads.
var errLost = refusal{http.StatusServiceUnavailable, "this host no longer leads the page service, or cannot prove that it does"}

// check returns why answers from a source may not be sent any more.
func (s *Source) check() error {
	if s.Index != nil && s.Valid != nil && !s.Valid() {
		return errLost
	}
	return nil
}

// old returns why the answer to a request that was asked for at a time may not be sent any more.
func (s *Server) old(to *route, asked time.Duration) error {
	if most := s.freshness(to); most > 0 && s.clock()-asked > most {
		return errOld
	}
	return nil
}
