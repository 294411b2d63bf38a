package kvstore

import (
	"context"
	"iter"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A Task is a batch of shards that [Store.Load] or [Store.Save] has begun. Each shard is
// settled once, with an error or without; from then on its buffer belongs to the caller
// again, unless the error is [ErrAbandoned]. When all shards are settled the task is
// done. Any number of goroutines may use its methods.
type Task struct{ task *kv.Task }

// Len returns the number of shards of the batch.
func (t *Task) Len() int { return t.task.Len() }

// Shard returns the i-th shard of the batch, as it was given to Load or Save.
func (t *Task) Shard(i int) Shard { return Shard(t.task.Shard(i)) }

// Done returns a channel that is closed when every shard is settled.
func (t *Task) Done() <-chan struct{} { return t.task.Done() }

// Err returns the error of the shard that failed first, nil while none has.
func (t *Task) Err() error { return public(t.task.Err()) }

// Result returns the error of the i-th shard, and whether the shard is settled.
func (t *Task) Result(i int) (err error, settled bool) {
	err, settled = t.task.Result(i)
	return public(err), settled
}

// Landed returns a channel that is closed when every shard of the batch with this index
// is settled, with an error or without. Ask LandedErr before using the layer. For an
// index that the batch does not have, the channel is closed already.
func (t *Task) Landed(layer int) <-chan struct{} { return t.task.Landed(layer) }

// LandedErr returns nil if every shard of the batch with this index is settled without
// an error: then the layer may be used. Once a shard of the layer has failed, it returns
// the error of the first that did; until then, while shards are not settled, it returns
// [ErrPending]. For an index that the batch does not have it returns nil.
func (t *Task) LandedErr(layer int) error { return public(t.task.LandedErr(layer)) }

// All yields the index and the error of each shard, in the order in which they are
// settled, and waits for each.
func (t *Task) All() iter.Seq2[int, error] {
	return func(yield func(int, error) bool) {
		for i, err := range t.task.All() {
			if !yield(i, public(err)) {
				return
			}
		}
	}
}

// Cancel settles what has not begun with [context.Canceled]. What has begun is finished.
func (t *Task) Cancel() { t.task.Cancel() }

// Wait waits until the task is done and returns Err. When ctx ends first, Wait cancels
// the batch and still waits for it, which the store bounds by its timeout: after Wait
// the buffers belong to the caller, unless an error is [ErrAbandoned]. It then returns
// ctx's error, joined with Err's if that differs.
func (t *Task) Wait(ctx context.Context) error { return public(t.task.Wait(ctx)) }
