package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
)

// ErrStuck says that a stop was given up because a call to the data directory did not return.
var ErrStuck = errors.New("the stop was given up")

// stopGrace is what a stop may take besides what clients, requests and the page service are given: to save
// what is known, on a disk that is busy.
const stopGrace = 30 * time.Second

// stopping follows a daemon to its end. What it waits for there may be a call to a disk or a server that does not
// answer, and then none of the waits behind it would end either. So one bound holds for all of them together.
type stopping struct {
	grace time.Duration
	began context.Context // ends when the stop begins, from wherever it is begun
	begin context.CancelFunc
	part  atomic.Pointer[string] // what is being stopped
}

func newStopping(ctx context.Context, grace time.Duration) *stopping {
	s := &stopping{grace: cmp.Or(grace, stopGrace)}
	s.began, s.begin = context.WithCancel(ctx)
	return s
}

// now says what is being stopped.
func (s *stopping) now(part string) { s.part.Store(&part) }

// await returns what run returns. Once the stop has begun it waits for that no longer than limit and the grace; run
// then goes on, with all that it uses, until the process ends.
func (s *stopping) await(limit time.Duration, dir string, run func() error) error {
	done := make(chan error, 1)
	go func() { done <- run() }()
	select {
	case err := <-done:
		return err
	case <-s.began.Done():
	}
	limit += s.grace
	select {
	case err := <-done:
		return err
	case <-time.After(limit):
	}
	part := "the start"
	if p := s.part.Load(); p != nil {
		part = *p
	}
	return fmt.Errorf("%w after %v, at %s: the disk or server of %s does not answer, so what was not saved is lost; the process is gone once the kernel has its calls back", ErrStuck, limit, part, dir)
}
