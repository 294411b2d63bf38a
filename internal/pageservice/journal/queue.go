package journal

import (
	"context"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// write is one call of Append: records that wait for the committer.
type write struct {
	recs     [][]byte
	done     func(error) // tells the owner the outcome
	state    atomic.Int32
	err      error         // valid once finished is closed
	finished chan struct{} // closed after done has returned
}

const (
	queued    int32 = iota
	taken           // the committer has it
	withdrawn       // wait gave it up
	refused         // the log was closed; wait returns ErrClosed
)

// enqueue queues a write, or marks it as refused.
func (j *Journal) enqueue(done func(error), recs [][]byte) *write {
	w := &write{recs: recs, done: done, finished: make(chan struct{})}
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		w.state.Store(refused)
		return w
	}
	j.queue = append(j.queue, w)
	j.nudge()
	return w
}

func (j *Journal) nudge() {
	select {
	case j.wake <- struct{}{}:
	default:
	}
}

// wait is the function that Append returns.
func (w *write) wait(ctx context.Context) error {
	if w.state.CompareAndSwap(refused, withdrawn) {
		w.finish(pageservice.ErrClosed)
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
			w.finish(ctx.Err())
		}
		return ctx.Err()
	}
}

func (w *write) finish(err error) {
	w.err = err
	w.recs = nil // callers keep w as long as they like
	w.done(err)
	close(w.finished)
}
