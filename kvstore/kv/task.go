package kv

import (
	"context"
	"errors"
	"iter"
	"sync"
)

// Task is one batch of shards on its way. Each is settled once, with an error or
// without; when all are, the task is done. Any number of goroutines may use its
// methods.
type Task struct {
	ctx    context.Context
	cancel context.CancelFunc
	shards []Shard
	done   chan struct{}

	mu      sync.Mutex
	changed chan struct{} // closed and replaced when a shard is settled and somebody waits
	order   []int32       // settled shards, in the order in which they were
	errs    []error       // by shard
	settled []bool
	failed  error                 // of the shard that failed first
	failing map[int]error         // by shard index: the error of the shard that failed first
	layers  map[int]chan struct{} // of indices that somebody asked Landed for
	left    []int32               // by shard index: how many are not settled
}

// NewTask is for stores. ctx is that of the call. The store settles every shard of
// it exactly once.
func NewTask(ctx context.Context, shards []Shard) *Task {
	t := &Task{
		shards:  shards,
		done:    make(chan struct{}),
		order:   make([]int32, 0, len(shards)),
		errs:    make([]error, len(shards)),
		settled: make([]bool, len(shards)),
		layers:  map[int]chan struct{}{},
	}
	t.ctx, t.cancel = context.WithCancel(ctx)
	most := 0
	for _, s := range shards {
		most = max(most, s.Index+1)
	}
	t.left = make([]int32, most)
	for _, s := range shards {
		t.left[s.Index]++
	}
	if len(shards) == 0 {
		t.end()
	}
	return t
}

// Context is for stores: it ends when the batch is cancelled, and when it is done.
func (t *Task) Context() context.Context { return t.ctx }

// Shard is for stores: the i-th of the batch.
func (t *Task) Shard(i int) Shard { return t.shards[i] }

// Settle is for stores: the i-th shard is dealt with, and its buffer is the
// caller's again. Settling one twice is a mistake of the store's, and panics.
func (t *Task) Settle(i int, err error) {
	t.mu.Lock()
	if t.settled[i] {
		t.mu.Unlock()
		panic("kvstore: shard settled twice")
	}
	t.settled[i], t.errs[i] = true, err
	t.order = append(t.order, int32(i))
	if t.failed == nil {
		t.failed = err
	}
	index := t.shards[i].Index
	if err != nil && t.failing[index] == nil {
		if t.failing == nil {
			t.failing = map[int]error{}
		}
		t.failing[index] = err
	}
	if t.left[index]--; t.left[index] == 0 {
		if landed := t.layers[index]; landed != nil {
			close(landed)
		}
	}
	if t.changed != nil {
		close(t.changed)
		t.changed = nil
	}
	last := len(t.order) == len(t.shards)
	t.mu.Unlock()
	if last {
		t.end()
	}
}

func (t *Task) end() {
	t.cancel()
	close(t.done)
}

// Len is how many shards the batch has.
func (t *Task) Len() int { return len(t.shards) }

// Done is closed when every shard is settled.
func (t *Task) Done() <-chan struct{} { return t.done }

// Err is the error of the shard that failed first, nil while none has.
func (t *Task) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// Result is how the i-th shard was settled, and whether it is yet.
func (t *Task) Result(i int) (err error, settled bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.errs[i], t.settled[i]
}

// Landed is closed when every shard of the batch with this index is settled: all
// blocks have their layer.
func (t *Task) Landed(index int) <-chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	landed := t.layers[index]
	if landed == nil {
		landed = make(chan struct{})
		t.layers[index] = landed
		if index < 0 || index >= len(t.left) || t.left[index] == 0 {
			close(landed)
		}
	}
	return landed
}

// LandedErr returns nil if every shard of the batch with this index is settled without
// an error: then the layer may be used. It returns the error of the shard of the layer
// that failed first, as soon as one has, and ErrPending while shards are not settled
// and none has failed.
func (t *Task) LandedErr(index int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.failing[index]; err != nil {
		return err
	}
	if index >= 0 && index < len(t.left) && t.left[index] > 0 {
		return ErrPending
	}
	return nil
}

// All goes through the shards in the order in which they are settled, waiting for
// each: its place in the batch, and its error.
func (t *Task) All() iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for n := range t.shards {
			i, err := t.nth(n)
			if !yield(i, err) {
				return
			}
		}
	}
}

// nth waits for the shard that is the n-th to be settled.
func (t *Task) nth(n int) (int, error) {
	for {
		t.mu.Lock()
		if n < len(t.order) {
			i := int(t.order[n])
			err := t.errs[i]
			t.mu.Unlock()
			return i, err
		}
		if t.changed == nil {
			t.changed = make(chan struct{})
		}
		changed := t.changed
		t.mu.Unlock()
		<-changed
	}
}

// Cancel asks for what has not begun to be left, with context.Canceled. What has
// is brought to its end.
func (t *Task) Cancel() { t.cancel() }

// Wait waits until the batch is done and returns Err. When ctx ends first it
// cancels the batch and still waits for it to be done, which the store bounds by its
// timeout: after Wait the buffers are the caller's, except where ErrAbandoned. Its
// error is then ctx's, with Err's where that is about something else.
func (t *Task) Wait(ctx context.Context) error {
	select {
	case <-t.done:
		return t.Err()
	case <-ctx.Done():
	}
	select {
	case <-t.done: // it was done as well, and is not cancelled
		return t.Err()
	default:
	}
	t.cancel()
	<-t.done
	if err := t.Err(); err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		return errors.Join(ctx.Err(), err)
	}
	return ctx.Err()
}
