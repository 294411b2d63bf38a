package journal

import (
	"context"
	"sync/atomic"
)

// Write is a change on its way to the disk.
type Write struct {
	recs  [][]byte
	told  func(error) // tells the owner the outcome
	state atomic.Int32
	err   error         // valid once done is closed
	done  chan struct{} // closed after told has returned
}

const (
	queued int32 = iota
	taken        // the committer has it
	withdrawn
	refused // the log was closed; Wait tells it
)

// Begin queues records that become durable together, in the order of calls. It never
// blocks. The journal owns the records from now on. told is called once with the
// outcome, by the committer in the order of calls, unless Wait gave the write up. A
// failed write has changed nothing, and later ones may succeed. After Close it is Wait
// that tells ErrClosed.
func (j *Journal) Begin(told func(error), recs ...[]byte) *Write {
	w := &Write{recs: recs, told: told, done: make(chan struct{})}
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

// Wait returns the outcome. When ctx ends first, a write that the committer has not
// taken is given up; one that the disk is at work on goes on, its outcome unknown to
// the caller.
func (w *Write) Wait(ctx context.Context) error {
	if w.state.CompareAndSwap(refused, withdrawn) {
		w.finish(ErrClosed)
	}
	select {
	case <-w.done: // also when ctx has ended as well
		return w.err
	default:
	}
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		if w.state.CompareAndSwap(queued, withdrawn) {
			w.finish(ctx.Err())
		}
		return ctx.Err()
	}
}

func (w *Write) finish(err error) {
	w.err = err
	w.told(err)
	close(w.done)
}
