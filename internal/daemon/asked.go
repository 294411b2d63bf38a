package daemon

import (
	"context"
	"sync"
	"time"
)

// asked is a question that may take long, or for ever where a disk hangs. There is one at a time, and whoever waits for its answer
// waits no longer than its context. The zero value is ready for use.
type asked[T any] struct {
	mu      sync.Mutex
	waiting chan struct{} // closed when the question under way is answered; nil: there is none
	answer  T
	failure error
	at      time.Time // of the last answer
}

// last returns the last answer, if there is one.
func (a *asked[T]) last() (answer T, ok bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answer, !a.at.IsZero() && a.failure == nil
}

// get returns an answer that is no older than age. A question that is asked for that runs in a goroutine, which start begins.
func (a *asked[T]) get(ctx context.Context, start func(func()), age time.Duration, ask func() (T, error)) (T, error) {
	a.mu.Lock()
	if a.waiting == nil && !a.at.IsZero() && time.Since(a.at) <= age {
		defer a.mu.Unlock()
		return a.answer, a.failure
	}
	if a.waiting == nil {
		done := make(chan struct{})
		a.waiting = done
		start(func() {
			answer, err := ask()
			a.mu.Lock()
			defer a.mu.Unlock()
			a.answer, a.failure, a.at, a.waiting = answer, err, time.Now(), nil
			close(done)
		})
	}
	waiting := a.waiting
	a.mu.Unlock()
	select {
	case <-waiting:
		a.mu.Lock()
		defer a.mu.Unlock()
		return a.answer, a.failure
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
}
