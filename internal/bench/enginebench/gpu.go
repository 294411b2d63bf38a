package enginebench

import (
	"context"
	"sync"
	"time"
)

// line is where requests wait for their turn, in the order in which they joined.
type line struct {
	mu   sync.Mutex
	last chan struct{} // closed when the one who joined last has left
}

// place is one in a line.
type place struct {
	mine  <-chan struct{} // closed when it is the turn of this one
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

// done lets the next one have its turn. Calling it twice is harmless.
func (p *place) done() { p.leave.Do(func() { close(p.left) }) }

// gpu is the simulated one. Its time is kept in numbers and not by sleeping layer
// by layer: a timer's error would be as long as a short layer.
type gpu struct {
	free time.Time // when the request before is done; of whoever has the turn
}

// run is a request on the GPU, whose turn it is: from begin on, layer by layer,
// each when the one before is done and it has landed. It says when the request is
// done, and for how long the GPU waited for bytes.
func (g *gpu) run(begin time.Time, landed []time.Time, each time.Duration) (end time.Time, stalled time.Duration) {
	if g.free.After(begin) {
		begin = g.free
	}
	end = begin
	for _, at := range landed {
		if at.After(end) {
			end = at
		}
		end = end.Add(each)
	}
	g.free = end
	return end, end.Sub(begin) - time.Duration(len(landed))*each
}

// sleepUntil waits for a time of the clock.
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
