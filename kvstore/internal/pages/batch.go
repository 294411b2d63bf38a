package pages

import (
	"context"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// enter begins a call. Its context also ends when the store is closed.
func (s *Store) enter(ctx context.Context) (_ context.Context, leave func(), err error) {
	if err := ctx.Err(); err != nil {
		return nil, nil, err
	}
	if err := s.group.Enter(); err != nil {
		return nil, nil, err
	}
	ctx, done := s.group.With(ctx)
	return ctx, func() {
		done()
		s.group.Leave()
	}, nil
}

// errLate is the cause of a context that has ended because of the timeout.
var errLate = fmt.Errorf("%w", kv.ErrTimeout)

// until returns a context that bounds the total of all waits that use it.
func until(ctx context.Context, latest time.Time) (context.Context, context.CancelFunc) {
	return context.WithDeadlineCause(ctx, latest, errLate)
}

// inTime is until for the store's timeout, counted from now.
func (s *Store) inTime(ctx context.Context) (context.Context, context.CancelFunc) {
	return until(ctx, time.Now().Add(s.o.Timeout))
}

// endOf returns why a context has ended.
func endOf(ctx context.Context) error {
	if context.Cause(ctx) == errLate {
		return errLate
	}
	return ctx.Err()
}

// begin admits a batch and runs it.
func (s *Store) begin(ctx context.Context, m batch.Method, shards []kv.Shard, run func(*batch.Batch, []kv.Shard)) (*kv.Task, error) {
	b, err := s.group.Begin(ctx, m, shards, s.limits[m])
	if err != nil {
		return nil, err
	}
	s.group.Go(func() { run(b, shards) })
	return b.Task, nil
}

// arrival is the end of a move.
type arrival struct {
	of  int // the place of a shard in the batch; -1-n for a record
	err error
}

// arrivals hands the ends of moves to a few goroutines, because checksums take time and the
// engine must not wait for them.
type arrivals struct {
	ended   chan arrival
	workers sync.WaitGroup
}

// newArrivals starts the goroutines; close stops them. At most most arrivals may be
// unhandled at a time.
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

// op returns a move whose end becomes an arrival.
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

// close waits for the workers to end. Nothing may arrive any more.
func (a *arrivals) close() {
	close(a.ended)
	a.workers.Wait()
}
