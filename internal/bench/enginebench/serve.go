package enginebench

import (
	"context"
	"sync"
	"time"
)

// during runs the engine while requests are made and finished. An error that fail gets ends
// it, and is returned.
func (e *engine) during(ctx context.Context, requests func(ctx context.Context, fail func(error))) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	var working sync.WaitGroup
	working.Go(func() { e.work(ctx, fail) })
	requests(ctx, fail)
	err := context.Cause(ctx)
	fail(nil)
	working.Wait()
	return err
}

// burst serves prompts that arrive together and saves the new blocks of each when it has
// its first token. New blocks are filled before the burst and loaded ones are checked
// after it, so that neither delays a request.
func (s *session) burst(ctx context.Context, prompts [][]uint32, hits int) (outcomes []outcome, err error) {
	e := s.engine
	var requests []*request
	defer func() {
		for _, r := range requests {
			e.release(r)
		}
	}()
	for _, text := range prompts {
		r, err := e.admit(ctx, text, s.b.o.OutputTokens, len(prompts))
		if err != nil {
			return nil, err
		}
		requests = append(requests, r)
		// New blocks are filled now.
		r.keys = e.hash(text)
		e.fill(r, hits)
	}
	err = e.during(ctx, func(ctx context.Context, fail func(error)) {
		var saves sync.WaitGroup
		arrival := e.now()
		for _, r := range requests {
			ended := make(chan struct{})
			r.arrival, r.finished = arrival, func(time.Duration) { close(ended) }
			saves.Go(func() {
				select {
				case <-r.computed:
				case <-ctx.Done():
					return
				}
				if err := e.save(ctx, r); err != nil {
					fail(err)
				}
				select {
				case <-ended:
				case <-ctx.Done():
				}
			})
			e.arrive(ctx, r)
		}
		saves.Wait()
	})
	if err != nil {
		return nil, err
	}
	for _, r := range requests {
		if err := e.verify(r); err != nil {
			return nil, err
		}
		outcomes = append(outcomes, e.outcomeOf(r))
	}
	return outcomes, nil
}

// arrival is a request of a stream: its prompt, how many tokens it generates, and when it
// arrives after the stream began.
type arrival struct {
	tokens []uint32
	output int
	after  time.Duration
}

// stream serves the prompts that next returns until it returns false: atOnce at a time, or
// each when it arrives if atOnce is 0. After an error it also returns what was measured.
func (s *session) stream(ctx context.Context, atOnce int, next func() (arrival, bool, error)) (outcomes []outcome, err error) {
	e := s.engine
	var all []*request
	begin := e.now()
	err = e.during(ctx, func(ctx context.Context, fail func(error)) {
		var saves sync.WaitGroup
		defer saves.Wait()
		// When another request could begin. Its wait is measured from then on, whatever time
		// the bench itself takes to begin it.
		free := make(chan time.Duration, atOnce)
		for range atOnce {
			free <- begin
		}
		for ctx.Err() == nil {
			a, more, err := next()
			if err != nil {
				fail(err)
			}
			if err != nil || !more {
				return
			}
			r, err := e.admit(ctx, a.tokens, a.output, 1)
			if err != nil {
				fail(err)
				return
			}
			ended := make(chan struct{})
			r.finished = func(at time.Duration) {
				if atOnce > 0 {
					free <- at
				}
				close(ended)
			}
			r.arrival = begin + a.after
			if atOnce > 0 {
				select {
				case r.arrival = <-free:
				case <-ctx.Done():
				}
			} else {
				_ = sleepUntil(ctx, e.wall(r.arrival)) // the context is asked below
			}
			all = append(all, r)
			if ctx.Err() != nil {
				return
			}
			e.arrive(ctx, r)
			saves.Go(func() {
				if err := e.finish(ctx, r); err != nil {
					fail(err)
				}
				select {
				case <-ended:
					e.release(r)
				case <-ctx.Done():
					// Its load may still run: it is released when all loads have ended.
				}
				s.b.progress.Step()
			})
		}
	})
	for _, r := range all {
		e.release(r)
		if len(r.tokens) > 0 {
			outcomes = append(outcomes, e.outcomeOf(r))
		}
	}
	return outcomes, err
}
