package batch

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Method is what a batch is for.
type Method int

// The methods of kv.Store that take batches.
const (
	Load Method = iota
	Save
)

// Batch is a kv.Task that has entered a group. Its Settle replaces the task's.
type Batch struct {
	*kv.Task

	// Last, if it is set before the first shard is settled, is called before the last
	// one is. It releases what the batch holds before the caller sees it done.
	Last func()

	group  *Group
	method Method
	limit  *Limit
	stop   func() bool // ends the wait for Close

	// Both count shards down to 0. left counts before a shard is settled, so that one
	// caller of Settle knows that it has the last one; unsettled counts after, so that
	// the batch leaves the group when its task is done.
	left, unsettled atomic.Int32
}

// Settle settles the i-th shard and counts it. It turns the error into one of the
// contract. With the last shard the batch leaves the group: Close may then end.
func (b *Batch) Settle(i int, err error) {
	if err != nil {
		err = b.group.Explain(err)
	}
	b.count(err)
	b.settle(i, err)
}

// SettleAll settles several shards alike.
func (b *Batch) SettleAll(shards []int, err error) {
	for _, i := range shards {
		b.Settle(i, err)
	}
}

// SettleRun settles the shards of a run alike.
func (b *Batch) SettleRun(r Run, err error) {
	for i := r.First; i < r.First+r.N; i++ {
		b.Settle(i, err)
	}
}

// SettleUncounted settles a shard for which the store has moved nothing, because another
// caller has.
func (b *Batch) SettleUncounted(i int) { b.settle(i, nil) }

func (b *Batch) settle(i int, err error) {
	left := int(b.left.Add(-1))
	invariants.Check(left >= 0, "a batch of %d shards has %d left", b.Len(), left)
	if b.limit != nil {
		b.limit.settled(b.Len(), left)
	}
	if left == 0 && b.Last != nil {
		b.Last()
	}
	b.Task.Settle(i, err)
	if b.unsettled.Add(-1) == 0 {
		b.stop()
		b.group.Leave()
	}
}

// count counts a shard that was settled with err.
func (b *Batch) count(err error) {
	c, size := b.group.count, b.group.layout.ShardBytes
	switch {
	case b.method == Save && err == nil:
		c.SavedShards.Add(1)
		c.SavedBytes.Add(size)
	case b.method == Save:
		c.FailedSaves.Add(1)
	case err == nil:
		c.LoadedShards.Add(1)
		c.LoadedBytes.Add(size)
	case errors.Is(err, kv.ErrMiss):
		c.MissedShards.Add(1)
	default:
		c.FailedLoads.Add(1)
	}
}

// Ended returns why nothing more of the batch is to be begun, and nil while it goes on:
// kv.ErrClosed, or the context's error.
func (b *Batch) Ended() error {
	if err := b.group.Err(); err != nil {
		return err
	}
	return b.Context().Err()
}

// Patience bounds how long the shards of a batch wait for something that others hold,
// such as space. All shards share one wait, or the waits of many would add up. The zero
// value is ready.
type Patience struct {
	mu    sync.Mutex
	until time.Time // zero while none has had to wait
}

// Left returns how much longer to wait: the timeout, counted from the first call since
// the last Reset.
func (p *Patience) Left(timeout time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.until.IsZero() {
		p.until = time.Now().Add(timeout)
	}
	return time.Until(p.until)
}

// Reset says that the wait succeeded: the next one has all of the timeout again.
func (p *Patience) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.until = time.Time{}
}

// Run is shards that follow one another in the batch, in the block and in memory, so that
// one call can move them.
type Run struct {
	First, N int
	Buf      []byte // of all of them
}

// Run returns the run of the i-th shard alone.
func (b *Batch) Run(i int) Run { return Run{First: i, N: 1, Buf: b.Shard(i).Buf} }

// Extend adds the shard behind a run to it and reports whether it could: the shard must
// be the next of the same block, its buffer must begin where that of the run ends and be
// part of the same slice, and the run may not become longer than mostBytes.
func (b *Batch) Extend(r *Run, mostBytes int) bool {
	last, i := b.Shard(r.First+r.N-1), r.First+r.N
	if i >= b.Len() {
		return false
	}
	next := b.Shard(i)
	if next.Device != nil || last.Device != nil {
		return false
	}
	n, more := len(r.Buf), len(next.Buf)
	if next.Key != last.Key || next.Index != last.Index+1 || cap(r.Buf) < n+more || n+more > mostBytes {
		return false
	}
	both := r.Buf[:n+more]
	if &both[n] != &next.Buf[0] {
		return false
	}
	r.Buf = both
	r.N++
	return true
}

// Queue gathers moves and hands them to an engine a few at a time, so that the first
// need not wait for the last. It is for one goroutine.
type Queue struct {
	Engine  transfer.Engine
	Context context.Context // of all moves: a queue lives within one call
	ops     []transfer.Op
}

// queueOps is how many moves are gathered.
const queueOps = 32

// Add gathers a move.
func (q *Queue) Add(op transfer.Op) {
	q.ops = append(q.ops, op)
	if len(q.ops) >= queueOps {
		q.Flush()
	}
}

// Flush begins all moves that were gathered. The engine calls the Done of each, also when
// the context has ended.
func (q *Queue) Flush() {
	if len(q.ops) > 0 {
		q.Engine.Do(q.Context, q.ops)
		q.ops = nil
	}
}
