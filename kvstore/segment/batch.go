package segment

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// batch is a task and what the store must know of it.
type batch struct {
	s    *Store
	t    *kv.Task
	left atomic.Int32
	free func() bool // from Close

	mu    sync.Mutex
	until time.Time // how long it waits for room; zero while it has not had to
}

// begin makes a batch that Close waits for.
func (s *Store) begin(ctx context.Context, shards []kv.Shard) (*batch, error) {
	if err := s.o.Layout.CheckShards(shards); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.isClosed {
		return nil, kv.ErrClosed
	}
	b := &batch{s: s, t: kv.NewTask(ctx, shards)}
	b.left.Store(int32(len(shards)))
	b.free = context.AfterFunc(s.closing, b.t.Cancel)
	s.tasks.Add(1)
	return b, nil
}

// settle settles a shard. Close may end after the last one.
func (b *batch) settle(i int, err error) {
	b.t.Settle(i, err)
	if b.left.Add(-1) == 0 {
		b.free()
		b.s.tasks.Done()
	}
}

// patience is how much longer a batch waits for room: the store's timeout, from the first
// of its shards that has to, be it for another batch that waits. Else shards of one block
// would wait one after the other.
func (b *batch) patience() time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.until.IsZero() {
		b.until = time.Now().Add(b.s.o.Timeout)
	}
	return time.Until(b.until)
}

// hasRoom says that the batch has got some: it has all of its patience again.
func (b *batch) hasRoom() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.until = time.Time{}
}

// ended is why a batch whose context has ended goes no further.
func (b *batch) ended() error {
	if b.s.closing.Err() != nil {
		return kv.ErrClosed
	}
	return b.t.Context().Err()
}

// run is shards of a batch, one behind the other, that are moved at once: they are
// neighbours in the block and in memory.
type run struct {
	first, n int
}

// maxRunBytes lets several streams share a large block.
const maxRunBytes = 4 << 20

// joined is a and b as one buffer, where b begins where a ends.
func joined(a, b []byte) ([]byte, bool) {
	if cap(a) < len(a)+len(b) || len(a)+len(b) > maxRunBytes {
		return nil, false
	}
	both := a[:len(a)+len(b)]
	return both, &both[len(a)] == &b[0]
}

// queue gathers moves and gives them to the engine a few at a time.
type queue struct {
	b   *batch
	ops []transfer.Op
}

// queueOps is how many moves are gathered: the first must not wait for the last.
const queueOps = 32

func (q *queue) add(op transfer.Op) {
	q.ops = append(q.ops, op)
	if len(q.ops) >= queueOps {
		q.flush()
	}
}

// flush begins the moves. The engine calls every Done, be it with the context's error.
func (q *queue) flush() {
	if len(q.ops) > 0 {
		q.b.s.engine.Do(q.b.t.Context(), q.ops)
		q.ops = nil
	}
}
