// Package batch is the part of Load and Save that is the same in every store. It admits
// batches and ends them at Close, settles and counts their shards, joins neighbouring
// shards into one move, and turns errors into those of the contract.
//
// The contract, which the stores build on:
//
//   - A Group holds the calls and batches that are under way in one store. What enters
//     before Close begins is waited for; what comes later gets kv.ErrClosed.
//   - A Batch is a kv.Task that has entered a Group. The store settles each shard
//     exactly once, through the Batch. The batch leaves the group with its last shard,
//     so after that nothing may use the store for this batch unless it has entered by
//     itself (Enter, Hold, Go).
//   - When Close begins, the contexts of all batches end. A batch then begins nothing
//     new, and finishes what it has begun.
//   - Every wait for admission ends with the caller's context, with Close, and after the
//     store's timeout.
//   - Errors given to Settle may be those of the engine, of the worker pool or of the next
//     store. Settle turns them into the contract's (see Explain) and counts them.
package batch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// Group is the calls and batches that are under way in one store. Any number of
// goroutines may use it.
type Group struct {
	layout  kv.Layout
	count   *kv.Counters
	timeout time.Duration
	device  device.Device // whose memory batches may name, or nil

	// closing ends when Close begins. It is kept because batches and calls of many
	// callers derive theirs from it.
	closing context.Context
	cancel  context.CancelFunc

	mu     sync.RWMutex
	closed bool
	inside sync.WaitGroup // what has entered; nothing enters after closed is set
}

// NewGroup returns the group of a store of this layout, which counts into count and
// bounds every wait by timeout.
func NewGroup(l kv.Layout, count *kv.Counters, timeout time.Duration) *Group {
	g := &Group{layout: l, count: count, timeout: timeout}
	g.closing, g.cancel = context.WithCancel(context.Background())
	return g
}

// Enter begins a call that Close waits for; Leave ends it. After Close has begun it
// returns kv.ErrClosed.
func (g *Group) Enter() error {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if g.closed {
		return kv.ErrClosed
	}
	g.inside.Add(1)
	return nil
}

// Leave ends what Enter or Hold has begun.
func (g *Group) Leave() { g.inside.Done() }

// Hold makes Close wait for one thing more, until Leave. Only what is inside the group
// may call it: between Enter and Leave, or before the last shard of a batch is settled.
func (g *Group) Hold() { g.inside.Add(1) }

// Go runs do in a goroutine that Close waits for. Like Hold, it may only be called from
// inside the group.
func (g *Group) Go(do func()) { g.inside.Go(do) }

// Err returns kv.ErrClosed when Close has begun.
func (g *Group) Err() error {
	if g.closing.Err() != nil {
		return kv.ErrClosed
	}
	return nil
}

// Closing returns a context that ends when Close begins.
func (g *Group) Closing() context.Context { return g.closing }

// With returns a context that ends with ctx and when Close begins. Explain turns the
// error of a call that ended so into kv.ErrClosed.
func (g *Group) With(ctx context.Context) (context.Context, context.CancelFunc) {
	inner, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(g.closing, cancel)
	return inner, func() {
		stop()
		cancel()
	}
}

// Close refuses new calls and batches, cancels those under way and waits until they have
// left.
func (g *Group) Close() {
	g.mu.Lock()
	g.closed = true
	g.mu.Unlock()
	g.cancel()
	g.inside.Wait()
}

// Explain turns an error of the storage into one of the contract: what Close has
// cancelled is kv.ErrClosed, a call that did not return, or whose file system or daemon got no
// answer in time, is a kv.ErrTimeout, a file system without space is a kv.ErrFull. Other errors stay as they are.
func (g *Group) Explain(err error) error {
	switch {
	case err == nil, errors.Is(err, kv.ErrMiss):
		return err
	case errors.Is(err, context.Canceled) && g.closing.Err() != nil:
		return kv.ErrClosed
	case (errors.Is(err, workerpool.ErrOverdue) || errors.Is(err, unix.ETIMEDOUT)) && !errors.Is(err, kv.ErrTimeout):
		return fmt.Errorf("%w: %w", kv.ErrTimeout, err)
	case (errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT)) && !errors.Is(err, kv.ErrFull):
		return fmt.Errorf("%w: %w", kv.ErrFull, err)
	}
	return err
}

// TakeMemoryOf lets batches name memory of the device, which nothing else may move then
// but the store that calls it, before its first batch.
func (g *Group) TakeMemoryOf(d device.Device) { g.device = d }

// check returns what is wrong with a batch.
func (g *Group) check(shards []kv.Shard) error {
	if g.device == nil {
		return g.layout.CheckShards(shards)
	}
	if err := g.layout.CheckAnyShards(shards); err != nil {
		return err
	}
	for i, s := range shards {
		if s.Device != nil && s.Device.Buffer.Device() != g.device {
			return &kv.BatchError{Shard: i, Key: s.Key, Reason: fmt.Sprintf(
				"it names memory of %s, and the store has another device: %s; set that of Config.Cache or Config.Gds", s.Device.Buffer.Device().Name(), g.device.Name())}
		}
	}
	return nil
}

// Begin takes a batch into the group. It waits while the limit is reached; a nil limit
// has no bound. An error means that nothing was begun.
func (g *Group) Begin(ctx context.Context, m Method, shards []kv.Shard, limit *Limit) (*Batch, error) {
	if err := g.check(shards); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if err := g.Enter(); err != nil {
		return nil, err
	}
	if limit != nil {
		if err := limit.acquire(ctx, g, len(shards)); err != nil {
			g.Leave()
			return nil, err
		}
	}
	b := &Batch{Task: kv.NewTask(ctx, shards), group: g, method: m, limit: limit}
	b.left.Store(int32(len(shards)))
	b.unsettled.Store(int32(len(shards)))
	b.stop = context.AfterFunc(g.closing, b.Cancel)
	return b, nil
}
