package measure

import (
	"context"
	"fmt"
	"time"
)

const (
	startLimit = 15 * time.Second
	stopLimit  = 15 * time.Second
)

// service is a child process that a benchmark uses.
type service struct {
	process  *Child
	reported bool // its end has been returned as an error
}

// await waits until works succeeds. what names what the process lacks until then.
func (s *service) await(ctx context.Context, what string, works func() error) error {
	ctx, cancel := context.WithTimeout(ctx, startLimit)
	defer cancel()
	for {
		err := works()
		if err == nil {
			return nil
		}
		select {
		case <-s.process.Ended():
			s.reported = true
			return fmt.Errorf("bench: the daemon ended at once: %w", s.process.ExitError())
		case <-ctx.Done():
			return fmt.Errorf("bench: the daemon has no %s after %v (%w); it said:\n%s", what, startLimit, err, s.process.LastOutput())
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// stop stops the process.
func (s *service) stop() error {
	if err := s.process.Stop(stopLimit); err != nil && !s.reported {
		return fmt.Errorf("bench: the daemon: %w", err)
	}
	return nil
}
