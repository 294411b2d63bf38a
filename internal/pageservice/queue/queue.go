// Package queue holds the writes of a pageservice.Log that wait for the goroutine that makes
// them durable. It keeps those promises of Log.Append that do not depend on where the log is.
package queue

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Queue holds writes in the order of Append. Append and Close may be called from any
// goroutine; Take, Wake and Write.Finish are for the one that writes.
type Queue struct {
	mu     sync.Mutex
	writes []*Write
	closed bool
	wake   chan struct{} // holds one token when writes or closed has changed
}

// New returns an empty queue.
func New() *Queue { return &Queue{wake: make(chan struct{}, 1)} }

// Write is one call of Append.
type Write struct {
	Recs  [][]byte // nil once finished: callers keep a Write as long as they like
	Bytes int      // of all records

	done     func(error) // tells the owner the outcome
	state    atomic.Int32
	err      error         // valid once finished is closed
	finished chan struct{} // closed after done has returned
}

const (
	queued    int32 = iota
	taken           // the goroutine that writes has it
	withdrawn       // wait gave it up
	refused         // the log was closed; wait returns ErrClosed
)

// Append queues a write, and returns the function that pageservice.Log.Append returns.
func (q *Queue) Append(done func(error), recs [][]byte) (wait func(context.Context) error) {
	w := &Write{Recs: recs, done: done, finished: make(chan struct{})}
	for _, rec := range recs {
		w.Bytes += len(rec)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		w.state.Store(refused)
		return w.wait
	}
	q.writes = append(q.writes, w)
	q.nudge()
	return w.wait
}

// Wake returns a channel that receives after the queue has got a write or was closed.
func (q *Queue) Wake() <-chan struct{} { return q.wake }

func (q *Queue) nudge() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// Take removes the first writes: as many as most bytes of records need, and one at least.
// It reports whether no more will come.
func (q *Queue) Take(most int) (batch []*Write, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	n, size := 0, 0
	for ; n < len(q.writes); n++ {
		w := q.writes[n]
		if w.state.Load() == withdrawn {
			continue
		}
		if len(batch) > 0 && size+w.Bytes > most {
			break
		}
		if w.state.CompareAndSwap(queued, taken) {
			size += w.Bytes
			batch = append(batch, w)
		}
	}
	q.writes = append(q.writes[:0:0], q.writes[n:]...)
	return batch, q.closed && len(q.writes) == 0
}

// Close refuses further writes, and reports whether it had been called before.
func (q *Queue) Close() (before bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	before, q.closed = q.closed, true
	q.nudge()
	return before
}

// Closed reports whether Close was called.
func (q *Queue) Closed() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed
}

// wait is the function that Append returns.
func (w *Write) wait(ctx context.Context) error {
	if w.state.CompareAndSwap(refused, withdrawn) {
		w.Finish(pageservice.ErrClosed)
	}
	select {
	case <-w.finished: // also when ctx has ended as well
		return w.err
	default:
	}
	select {
	case <-w.finished:
		return w.err
	case <-ctx.Done():
		if w.state.CompareAndSwap(queued, withdrawn) {
			w.Finish(ctx.Err())
		}
		return ctx.Err()
	}
}

// Finish passes the outcome of a write that was taken to its owner.
func (w *Write) Finish(err error) {
	w.err = err
	w.Recs = nil
	w.done(err)
	close(w.finished)
}
