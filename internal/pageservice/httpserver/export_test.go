package httpserver

import (
	"context"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// StatusInPool returns the status of the answer to a request of SGLang that failed.
func (s *Server) StatusInPool(err error) int { return s.translate(new(call).inPool(err)).status }

// SetClock replaces the clock that the age of answers goes by. It is called before the first request.
func (s *Server) SetClock(now func() time.Duration) { s.clock = now }

// OnStat has f called whenever the state of all spaces is queried. It is called before
// the first request.
func (s *Server) OnStat(f func()) {
	query := s.stats.query
	s.stats.query = func(ctx context.Context) ([]pageservice.SpaceState, error) {
		f()
		return query(ctx)
	}
}
