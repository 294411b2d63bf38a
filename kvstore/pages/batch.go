package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// enter begins a call, whose context ends with the store as well.
func (s *Store) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, nil, kv.ErrClosed
	}
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	s.work.Add(1)
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(s.life, func() { cancel(kv.ErrClosed) })
	return ctx, func() {
		stop()
		cancel(nil)
		s.work.Done()
	}, nil
}

// errLate ends what waits longer than the timeout.
var errLate = fmt.Errorf("%w", kv.ErrTimeout)

// until bounds all waits for others that it is given to, together.
func until(ctx context.Context, latest time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, latest, errLate)
}

// inTime bounds them by the timeout.
func (s *Store) inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return until(ctx, time.Now().Add(s.o.Timeout))
}

// endOf says why a context has ended.
func endOf(ctx context.Context) error {
	if cause := context.Cause(ctx); cause == errLate || cause == kv.ErrClosed {
		return cause
	}
	return ctx.Err()
}

// because says of a call that ended with its context why that did.
func because(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) && ctx.Err() != nil {
		return endOf(ctx)
	}
	return err
}

// begin takes a batch when there is a place for it, and has it run.
func (s *Store) begin(ctx context.Context, shards []kv.Shard, run func(context.Context, *kv.Task, []kv.Shard)) (*kv.Task, error) {
	if err := s.o.Layout.CheckShards(shards); err != nil {
		return nil, err
	}
	t := kv.NewTask(ctx, shards)
	work, leave, err := s.enter(t.Context())
	if err != nil {
		t.Cancel()
		return nil, err
	}
	if err := s.queue(work); err != nil {
		leave()
		t.Cancel()
		return nil, err
	}
	go func() {
		run(work, t, shards)
		<-s.places
		leave()
	}()
	return t, nil
}

// queue waits for a place.
func (s *Store) queue(ctx context.Context) error {
	select {
	case s.places <- struct{}{}:
		return nil
	default:
	}
	ctx, done := s.inTime(ctx)
	defer done()
	select {
	case s.places <- struct{}{}:
		return nil
	case <-ctx.Done():
	}
	if err := endOf(ctx); err != errLate {
		return err
	}
	return fmt.Errorf("%w: %d batches were before this one", kv.ErrTimeout, s.o.WaitingQueueDepth)
}

// arrival is a move that has ended.
type arrival struct {
	of  int // a shard's place in the batch; -1-n for a record
	err error
}

// arrivals takes what ends, without ever making the engine wait, and hands it to a few
// goroutines, for checksums are work.
type arrivals struct {
	ended   chan arrival
	workers sync.WaitGroup
}

// newArrivals is for at most so many at a time.
func newArrivals(most, workers int, handle func(arrival)) *arrivals {
	a := &arrivals{ended: make(chan arrival, most)}
	for range min(workers, most) {
		a.workers.Go(func() {
			for one := range a.ended {
				handle(one)
			}
		})
	}
	return a
}

// op makes a move one whose end arrives.
func (a *arrivals) op(of int, op transfer.Op) transfer.Op {
	wanted := len(op.Buf)
	op.Done = func(n int, err error) {
		if err == nil && n < wanted {
			err = io.ErrUnexpectedEOF
		}
		a.ended <- arrival{of, err}
	}
	return op
}

// close ends the workers, when nothing can arrive any more.
func (a *arrivals) close() {
	close(a.ended)
	a.workers.Wait()
}
