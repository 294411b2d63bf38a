package volumes

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// patience bounds the wait for calls that may hang in the kernel, which nothing ends but the daemon that they wait for. Such a
// call goes on by itself when the wait is over, and what it uses stays taken until it ends.
type patience struct {
	limit time.Duration
	calls sync.WaitGroup

	mu   sync.Mutex
	busy map[string]bool // by target
}

func newPatience(limit time.Duration) *patience {
	return &patience{limit: limit, busy: map[string]bool{}}
}

// alone runs fn for a target unless a former call for it has not ended.
func (p *patience) alone(ctx context.Context, target string, fn func() error) error {
	p.mu.Lock()
	if p.busy[target] {
		p.mu.Unlock()
		return failure(Busy, "a former call for %s has not ended: it goes on by itself; try again, and if this stays, the daemon or the disk below it hangs: restart the daemon", target)
	}
	p.busy[target] = true
	p.mu.Unlock()
	_, err := within(ctx, p, "the volume at "+target, func() (struct{}, error) {
		defer func() {
			p.mu.Lock()
			delete(p.busy, target)
			p.mu.Unlock()
		}()
		return struct{}{}, fn()
	})
	return err
}

// within returns what fn returns, or an error once the wait for it is over.
func within[V any](ctx context.Context, p *patience, what string, fn func() (V, error)) (V, error) {
	type answer struct {
		v   V
		err error
	}
	answers := make(chan answer, 1)
	p.calls.Go(func() {
		v, err := fn()
		answers <- answer{v, err}
	})
	var none V
	timer := time.NewTimer(p.limit)
	defer timer.Stop()
	select {
	case a := <-answers:
		return a.v, a.err
	case <-ctx.Done():
		return none, fmt.Errorf("%s: %w", what, ctx.Err())
	case <-timer.C:
		return none, failure(NotReady, "%s does not answer within %v: the daemon or the disk below it hangs: look at its log, or restart it", what, p.limit)
	}
}

// drain waits for calls that have not ended, for as long as it would for each.
func (p *patience) drain() {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		p.calls.Wait()
	}()
	select {
	case <-ended:
	case <-time.After(p.limit): // they hang, and end with the process
	}
}

// shared makes calls of which there is one at a time for each key, however many ask: a mount that hangs holds one thread.
type shared[V any] struct {
	mu      sync.Mutex
	running map[string]*sharedCall[V]
}

type sharedCall[V any] struct {
	ended chan struct{}
	v     V
	err   error
}

// ask returns what fn returns, or what a call for the same key does that is under way.
func (s *shared[V]) ask(ctx context.Context, p *patience, key, what string, fn func() (V, error)) (V, error) {
	s.mu.Lock()
	call := s.running[key]
	if call == nil {
		call = &sharedCall[V]{ended: make(chan struct{})}
		if s.running == nil {
			s.running = map[string]*sharedCall[V]{}
		}
		s.running[key] = call
		p.calls.Go(func() {
			call.v, call.err = fn()
			s.mu.Lock()
			delete(s.running, key)
			s.mu.Unlock()
			close(call.ended)
		})
	}
	s.mu.Unlock()
	var none V
	timer := time.NewTimer(p.limit)
	defer timer.Stop()
	select {
	case <-call.ended:
		return call.v, call.err
	case <-ctx.Done():
		return none, fmt.Errorf("%s: %w", what, ctx.Err())
	case <-timer.C:
		return none, failure(NotReady, "%s does not answer within %v: the daemon or the disk below it hangs: look at its log, or restart it", what, p.limit)
	}
}
