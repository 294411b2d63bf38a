package usrbio

import (
	"context"
	"sync"
	"syscall"
	"time"
)

// answerTimeout bounds every call that the daemon must answer, even if the caller's
// context lasts longer. A working daemon answers these calls from memory.
const answerTimeout = 30 * time.Second

// responder bounds the waits for one daemon's answers. Once a wait has lasted for
// answerTimeout, the daemon counts as hung and no call waits for it until it answers.
type responder struct {
	answerTimeout time.Duration

	mu   sync.Mutex
	hung chan struct{} // closed while the daemon counts as hung, then replaced
}

func newResponder(answerTimeout time.Duration) *responder {
	return &responder{answerTimeout: answerTimeout, hung: make(chan struct{})}
}

// whileHung returns a channel that is closed when the daemon counts as hung.
func (r *responder) whileHung() <-chan struct{} {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.hung
}

// giveUp marks the daemon as hung.
func (r *responder) giveUp() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !isClosed(r.hung) {
		close(r.hung)
	}
	return syscall.ETIMEDOUT
}

// answered notes an answer that came after its caller stopped waiting: the daemon
// works again.
func (r *responder) answered() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if isClosed(r.hung) {
		r.hung = make(chan struct{})
	}
}

// expired returns an error if a call need not even begin: the daemon counts as hung,
// or ctx has ended.
func (r *responder) expired(ctx context.Context) error {
	if isClosed(r.whileHung()) {
		return syscall.ETIMEDOUT
	}
	return ctx.Err()
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// query is a call that the daemon must answer, on a goroutine that may block
// for as long as the daemon does.
type query struct {
	of     *responder
	fn     func() error
	undo   func()        // nil: nothing to undo
	answer chan error    // unbuffered: only a caller that still waits receives it
	left   chan struct{} // closed when the caller no longer waits
}

func (r *responder) query(fn func() error, undo func()) *query {
	return &query{of: r, fn: fn, undo: undo, answer: make(chan error), left: make(chan struct{})}
}

// run runs fn, and then undo if fn succeeded for a caller that no longer waits.
func (q *query) run() {
	err := q.fn()
	select {
	case q.answer <- err:
	case <-q.left:
		q.of.answered()
		if err == nil && q.undo != nil {
			q.undo()
		}
	}
}

// await waits for the answer, at most until ctx ends, the timer fires or the
// daemon counts as hung.
func (r *responder) await(ctx context.Context, q *query, timer *time.Timer) error {
	var err error
	select {
	case err = <-q.answer:
		return err
	case <-ctx.Done():
		err = ctx.Err()
	case <-r.whileHung():
		err = syscall.ETIMEDOUT
	case <-timer.C:
		err = r.giveUp()
	}
	close(q.left)
	return err
}

// bounded runs fn with the same bounds where there is no Mount yet. If it returns
// early, fn keeps a thread until the daemon answers.
func bounded(ctx context.Context, fn func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	r := newResponder(answerTimeout)
	q := r.query(fn, nil)
	timer := time.NewTimer(r.answerTimeout)
	defer timer.Stop()
	go q.run()
	return r.await(ctx, q, timer)
}

// once runs a Close once. Later callers wait for the first, as long as their
// context lasts, and return its error.
type once struct {
	mu   sync.Mutex
	done chan struct{} // nil: not begun
	err  error         // valid once done is closed
}

func (o *once) do(ctx context.Context, fn func() error) error {
	o.mu.Lock()
	done := o.done
	if done == nil {
		o.done = make(chan struct{})
	}
	o.mu.Unlock()
	if done == nil {
		defer close(o.done)
		o.err = fn()
		return o.err
	}
	select {
	case <-done:
		return o.err
	case <-ctx.Done():
		select {
		case <-done:
			return o.err
		default:
			return ctx.Err()
		}
	}
}
