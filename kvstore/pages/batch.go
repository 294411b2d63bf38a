package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/transfer"
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

// because says of a call that ended with its context why that did.
func because(ctx context.Context, err error) error {
	if errors.Is(err, context.Canceled) && errors.Is(context.Cause(ctx), kv.ErrClosed) {
		return kv.ErrClosed
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
	patience := time.NewTimer(s.o.Timeout)
	defer patience.Stop()
	select {
	case s.places <- struct{}{}:
		return nil
	case <-ctx.Done():
		return because(ctx, ctx.Err())
	case <-patience.C:
		return fmt.Errorf("%w: %d batches were before this one", kv.ErrTimeout, s.o.WaitingQueueDepth)
	}
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
