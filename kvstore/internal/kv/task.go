package kv

import (
	"context"
	"errors"
	"iter"
	"sync"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// Task is one batch of shards. Each shard is settled once, with an error or without;
// when all are, the task is done. Any number of goroutines may use its methods.
type Task struct {
	ctx    context.Context // the batch's: it ends when the batch is cancelled or done
	cancel context.CancelFunc
	shards []Shard
	done   chan struct{}

	mu       sync.Mutex
	changed  chan struct{}          // closed and replaced when a shard is settled and a goroutine waits
	order    []int32                // settled shards, in the order in which they were
	versions []uint64               // by shard: see Version
	errs     []error                // by shard
	settled  []bool                 // by shard
	failed   error                  // of the shard that failed first
	failing  map[int]error          // by shard index: the error of the shard that failed first
	layers   map[int]chan struct{}  // by shard index, of those that Landed was called for
	left     []int32                // by shard index: how many are not settled
	observer func(i int, err error) // sees every shard before it is settled
}

// NewTask makes the task of a batch for a store. ctx is that of the call. The store
// settles every shard exactly once.
func NewTask(ctx context.Context, shards []Shard) *Task {
	t := &Task{
		shards:   shards,
		done:     make(chan struct{}),
		order:    make([]int32, 0, len(shards)),
		errs:     make([]error, len(shards)),
		versions: make([]uint64, len(shards)),
		settled:  make([]bool, len(shards)),
		layers:   map[int]chan struct{}{},
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

// Context is for stores. It ends when the batch is cancelled, and when it is done.
func (t *Task) Context() context.Context { return t.ctx }

// Shard returns the i-th shard of the batch.
func (t *Task) Shard(i int) Shard { return t.shards[i] }

// SetVersion is for stores. It says, before a shard of a Load is settled, of which version
// of its block it is.
func (t *Task) SetVersion(i int, version uint64) { t.versions[i] = version }

// Version returns what SetVersion has set, for a shard that is settled without an error.
// Shards of one key with the same version are of one Save. 0 says nothing: then only the
// shards of this task are known to be of one.
func (t *Task) Version(i int) uint64 { return t.versions[i] }

// Settle is for stores. It ends the i-th shard, whose buffer then belongs to the caller
// again. Settling a shard twice is a bug in the store, and panics.
func (t *Task) Settle(i int, err error) {
	t.mu.Lock()
	if observe := t.observer; observe != nil && !t.settled[i] {
		t.mu.Unlock()
		observe(i, err)
		t.mu.Lock()
	}
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
	if invariants.Enabled && (last || len(t.order) < 64) { // each check looks at all shards
		t.check()
	}
	t.mu.Unlock()
	if last {
		t.end()
	}
}

// check asserts that the fields agree with each other. t.mu is held.
func (t *Task) check() {
	settled, left := 0, 0
	for _, is := range t.settled {
		if is {
			settled++
		}
	}
	for index, n := range t.left {
		invariants.Check(n >= 0, "layer %d has %d shards left", index, n)
		left += int(n)
	}
	invariants.Check(settled == len(t.order) && settled+left == len(t.shards),
		"of %d shards %d are settled, %d in order, and %d are left", len(t.shards), settled, len(t.order), left)
}

// Observe calls f once for every shard, with its error, before Done is closed: for
// shards that are already settled before Observe returns, for the others from Settle. A
// task has one observer at most. f must not block, and may be called by several
// goroutines at once.
func (t *Task) Observe(f func(i int, err error)) {
	t.mu.Lock()
	invariants.Check(t.observer == nil, "a task has a second observer")
	t.observer = f
	settled := t.order[:len(t.order):len(t.order)]
	t.mu.Unlock()
	for _, i := range settled {
		f(int(i), t.errs[i]) // written before the lock was released, and never again
	}
}

func (t *Task) end() {
	t.cancel()
	close(t.done)
}

// Len returns the number of shards of the batch.
func (t *Task) Len() int { return len(t.shards) }

// Done returns a channel that is closed when every shard is settled.
func (t *Task) Done() <-chan struct{} { return t.done }

// Err returns the error of the shard that failed first, nil while none has.
func (t *Task) Err() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.failed
}

// Result returns the error of the i-th shard, and whether it is settled.
func (t *Task) Result(i int) (err error, settled bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.errs[i], t.settled[i]
}

// Landed returns a channel that is closed when every shard of the batch with this index
// is settled, with an error or without: see LandedErr.
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
// an error: then the layer may be used. Once a shard of the layer has failed, it returns
// the error of the first that did; until then, while shards are not settled, it returns
// ErrPending.
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

// All yields the index and the error of each shard, in the order in which they are
// settled, and waits for each.
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

// Cancel settles what has not begun with context.Canceled. What has begun is finished.
func (t *Task) Cancel() { t.cancel() }

// Wait waits until the batch is done and returns Err. When ctx ends first, Wait cancels
// the batch and still waits for it, which the store bounds by its timeout: after Wait
// the buffers belong to the caller, unless ErrAbandoned says otherwise. It then returns
// ctx's error, joined with Err's if that differs.
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
