package enginebench

import (
	"context"
	"sync"
	"time"
)

// burst serves prompts that arrive together and saves the new blocks of each when it has
// its first token. New blocks are filled before the burst and loaded ones are checked
// after it, so that neither delays a request.
func (s *session) burst(ctx context.Context, prompts [][]uint32, hits int) ([]outcome, error) {
	e := s.engine
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var requests []*request
	defer func() {
		for _, r := range requests {
			e.release(r)
		}
	}()
	for _, tokens := range prompts {
		r, err := e.admit(ctx, tokens, len(prompts))
		if err != nil {
			return nil, err
		}
		requests = append(requests, r)
		// New blocks are filled now.
		r.keys = e.hash(tokens)
		e.fill(r, hits)
	}
	var wg sync.WaitGroup
	arrival := time.Now()
	for _, r := range requests {
		r.arrival = arrival
		wg.Go(func() {
			err := e.serve(ctx, r)
			if err == nil {
				err = e.save(ctx, r)
			}
			if err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, err
	}
	var all []outcome
	for _, r := range requests {
		if err := e.verify(r); err != nil {
			return nil, err
		}
		all = append(all, r.out)
	}
	return all, nil
}

// arrival is a request of a stream: its prompt, and when it arrives after the stream
// began, in the engine's time.
type arrival struct {
	tokens []uint32
	after  time.Duration
}

// stream serves the prompts that next returns until it returns false: atOnce at a time, or
// each when it arrives if atOnce is 0. After an error it also returns what was measured.
func (s *session) stream(ctx context.Context, atOnce int, next func() (arrival, bool, error)) ([]outcome, error) {
	e := s.engine
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		wg    sync.WaitGroup
		all   []*request
		begin = time.Now()
		// When another request could begin. Its wait is measured from then on, whatever time
		// the bench itself takes to begin it.
		free = make(chan time.Time, atOnce)
	)
	for range atOnce {
		free <- begin
	}
	for ctx.Err() == nil {
		a, more, err := next()
		if err != nil {
			cancel(err)
		}
		if err != nil || !more {
			break
		}
		came := begin.Add(e.wall(a.after))
		if atOnce > 0 {
			select {
			case came = <-free:
			case <-ctx.Done():
				continue
			}
		} else if sleepUntil(ctx, came) != nil {
			break
		}
		r, err := e.admit(ctx, a.tokens, 1)
		if err != nil {
			cancel(err)
			break
		}
		r.arrival = came
		all = append(all, r)
		wg.Go(func() {
			defer e.release(r)
			err := e.serve(ctx, r)
			if err == nil {
				if atOnce > 0 {
					free <- r.out.done
				}
				err = e.save(ctx, r)
			}
			if err == nil {
				err = e.verify(r)
			}
			if err != nil {
				cancel(err)
			}
			s.b.progress.Step()
		})
	}
	wg.Wait()
	var outcomes []outcome
	for _, r := range all {
		if !r.out.done.IsZero() {
			outcomes = append(outcomes, r.out)
		}
	}
	return outcomes, context.Cause(ctx)
}
