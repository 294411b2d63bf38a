package enginebench

import (
	"context"
	"sync"
	"time"
)

// line is a queue in which requests wait for their turn.
type line struct {
	mu   sync.Mutex
	last chan struct{} // closed when the last request has left
}

// place is a request's place in a line.
type place struct {
	mine  <-chan struct{} // closed when it is this request's turn
	left  chan struct{}
	leave sync.Once
}

func (l *line) join() *place {
	l.mu.Lock()
	defer l.mu.Unlock()
	p := &place{mine: l.last, left: make(chan struct{})}
	l.last = p.left
	if p.mine == nil {
		first := make(chan struct{})
		close(first)
		p.mine = first
	}
	return p
}

// wait waits for the turn.
func (p *place) wait(ctx context.Context) error {
	select {
	case <-p.mine:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// done ends the turn. Calling it twice is harmless.
func (p *place) done() { p.leave.Do(func() { close(p.left) }) }

// sleepUntil waits until a point in time.
func sleepUntil(ctx context.Context, at time.Time) error {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
