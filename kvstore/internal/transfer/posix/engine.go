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

	// WaitingQueueDepth is how many reads wait for a stream before Do blocks, and how many
	// writes; 1024.
	WaitingQueueDepth int

	// Timeout is how long a move may make no progress; 30 s. It may wait longer for its
	// turn while others end.
	Timeout time.Duration

	// DirectIO bypasses the page cache for moves that are aligned to 4096 bytes in the
	// file. A buffer that is not aligned costs a copy. On a file system without direct
	// I/O it changes nothing.
	DirectIO bool

	// Device moves the ops whose memory is a device's. Without it there must be none. The
	// engine closes it.
	Device DeviceMover
}

// DeviceMover moves bytes between files and a device's memory. Any number of goroutines may
// call its methods.
type DeviceMover interface {
	// Open returns the way to move bytes of f, which stays open until after its Close.
	Open(f *os.File) DeviceFile
	// Close is called when nothing is moving, and after all files are closed.
	Close() error
}

// DeviceFile is a file of a DeviceMover.
type DeviceFile interface {
	// Move does an op and returns how many bytes were moved, as for Op.Done. It calls
	// op.Piece, and neither Done nor Late.
	Move(op transfer.Op) (int, error)
	// Close is called when nothing is moving.
	Close() error
}

// engine is a transfer.Engine.
type engine struct {
	o       Options
	pool    *workerpool.Pool
	reads   chan struct{} // holds a token for each read that is waiting or under way
	writes  chan struct{} // the same of writes, which may be many: reads do not wait for them
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
	}
	e.reads = make(chan struct{}, o.WaitingQueueDepth+o.Streams)
	e.writes = make(chan struct{}, o.WaitingQueueDepth+o.Streams)
	e.closed, e.closing = context.WithCancel(context.Background())
	return e
}

// Open takes f over. On an error f stays the caller's.
func (e *engine) Open(f *os.File) (transfer.File, error) {
	if e.closed.Err() != nil {
		return nil, fmt.Errorf("open %s: %w", f.Name(), kv.ErrClosed)
	}
	file, err := newFile(f, e.o.DirectIO)
	if err != nil {
		return nil, err
	}
	if e.o.Device != nil {
		file.device = e.o.Device.Open(f)
	}
	return file, nil
}

// Register does nothing: buffers are used in place.
func (e *engine) Register(string, []byte) error { return nil }

// Do implements transfer.Engine.
func (e *engine) Do(ctx context.Context, ops []transfer.Op) {
	called := sync.OnceValue(time.Now)
	for i := range ops {
		op := ops[i]
		room, bulk := e.reads, int64(0)
		if op.Write {
			room, bulk = e.writes, int64(max(1, op.Len()))
		}
		if op.Ahead {
			room, bulk = e.reads, 0
		}
		err := e.enter(ctx, room, called)
		if err != nil {
			op.Done(0, err)
			continue
		}
		var n int
		var failed error
		e.pool.Go(workerpool.Job{
			Context: ctx,
			Bulk:    bulk,
			Run:     func() { n, failed = e.move(op) },
			Late:    op.Late,
			Done: func(err error) {
				<-room
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

// enter waits for room in the queue, for as long as moves end.
func (e *engine) enter(ctx context.Context, room chan<- struct{}, called func() time.Time) error {
	switch {
	case e.closed.Err() != nil:
		return kv.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	select {
	case room <- struct{}{}:
		return nil
	default:
	}
	patience := time.NewTimer(e.pool.Left(called()))
	defer patience.Stop()
	for {
		select {
		case room <- struct{}{}:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		case <-e.closed.Done():
			return kv.ErrClosed
		case <-patience.C:
			left := e.pool.Left(called())
			if left <= 0 {
				return kv.ErrTimeout
			}
			patience.Reset(left)
		}
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
	if e.o.Device != nil && err == nil {
		err = e.o.Device.Close()
	}
	return err
}
