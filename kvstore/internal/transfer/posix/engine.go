// Package posix moves bytes by system calls: it is a transfer.Engine that calls pread and
// pwrite from a bounded number of goroutines, past the page cache if that is wanted and
// possible.
package posix

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// Options of New. The zero value is good.
type Options struct {
	// Streams is how many moves are under way at once; 32. More help if the storage is
	// far away.
	Streams int

	// WaitingQueueDepth is how many moves wait for a stream before Do blocks; 1024.
	WaitingQueueDepth int

	// Timeout is how long a move may wait for its turn, and then how long it may
	// take; 30 s.
	Timeout time.Duration

	// DirectIO bypasses the page cache for moves that are aligned to 4096 bytes in the
	// file. A buffer that is not aligned costs a copy. On a file system without direct
	// I/O it changes nothing.
	DirectIO bool
}

// engine is a transfer.Engine.
type engine struct {
	o       Options
	pool    *workerpool.Pool
	room    chan struct{} // holds a token for each op that is waiting or under way
	staging staging

	// closed ends when Close begins, which closing does. Calls of Do that wait select on
	// it.
	closing func()
	closed  context.Context // one signal for many waiting calls, derived from no call
}

// New starts an engine.
func New(o Options) transfer.Engine {
	if o.Streams <= 0 {
		o.Streams = 32
	}
	if o.WaitingQueueDepth <= 0 {
		o.WaitingQueueDepth = 1024
	}
	if o.Timeout <= 0 {
		o.Timeout = 30 * time.Second
	}
	e := &engine{
		o:    o,
		pool: workerpool.New(o.Streams, o.Timeout),
		room: make(chan struct{}, o.WaitingQueueDepth+o.Streams),
	}
	e.closed, e.closing = context.WithCancel(context.Background())
	return e
}

// Open takes f over. On an error f stays the caller's.
func (e *engine) Open(f *os.File) (transfer.File, error) {
	if e.closed.Err() != nil {
		return nil, fmt.Errorf("open %s: %w", f.Name(), kv.ErrClosed)
	}
	return newFile(f, e.o.DirectIO)
}

// Register does nothing: buffers are used in place.
func (e *engine) Register(string, []byte) error { return nil }

// Do implements transfer.Engine.
func (e *engine) Do(ctx context.Context, ops []transfer.Op) {
	timeout := sync.OnceValue(func() <-chan time.Time { return time.After(e.o.Timeout) })
	for i := range ops {
		op := ops[i]
		err := e.enter(ctx, timeout)
		if err != nil {
			op.Done(0, err)
			continue
		}
		var n int
		var failed error
		e.pool.Go(workerpool.Job{
			Context: ctx,
			Run:     func() { n, failed = e.move(op) },
			Done: func(err error) {
				<-e.room
				switch {
				case err == nil:
					op.Done(n, failed)
				case errors.Is(err, workerpool.ErrOverdue):
					op.Done(0, kv.Abandoned(fmt.Sprintf("%s did not return in %v", describe(op), e.o.Timeout)))
				default:
					op.Done(0, err)
				}
			},
		})
	}
}

// enter waits for room in the queue.
func (e *engine) enter(ctx context.Context, timeout func() <-chan time.Time) error {
	switch {
	case e.closed.Err() != nil:
		return kv.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	select {
	case e.room <- struct{}{}:
		return nil
	default:
	}
	select {
	case e.room <- struct{}{}:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-e.closed.Done():
		return kv.ErrClosed
	case <-timeout():
		return kv.ErrTimeout
	}
}

func describe(op transfer.Op) string {
	what := "read from"
	if op.Write {
		what = "write to"
	}
	return fmt.Sprintf("%s %s at %d", what, op.File.(*file).f.Name(), op.Offset)
}

// Close waits for what has begun. Its error says that a call has never returned: the
// kernel may use the buffer of that move for as long as the process lives.
func (e *engine) Close() error {
	e.closing()
	err := e.pool.Close()
	e.staging.close()
	return err
}
