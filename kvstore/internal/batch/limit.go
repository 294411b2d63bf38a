package batch

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Limit bounds how much is under way at once. Several kinds of batches may share one.
type Limit struct {
	tokens *semaphore.Weighted
	most   int
	shards bool         // a token is a shard, else a batch
	taken  atomic.Int64 // at most most
	given  atomic.Int64 // tokens given back, ever
}

// LimitBatches returns a limit of so many batches.
func LimitBatches(most int) *Limit {
	return &Limit{tokens: semaphore.NewWeighted(int64(most)), most: most}
}

// LimitShards returns a limit of so many shards. A batch of more takes all of it.
func LimitShards(most int) *Limit {
	return &Limit{tokens: semaphore.NewWeighted(int64(most)), most: most, shards: true}
}

// Take takes a token of a limit of batches for something of the caller's own, which gives it back
// with Give. Its waiting and its errors are those of Begin.
func (l *Limit) Take(ctx context.Context, g *Group) error { return l.acquire(ctx, g, 1) }

// Give gives back what Take has taken.
func (l *Limit) Give() {
	taken := l.taken.Add(-1)
	invariants.Check(taken >= 0, "%d tokens are taken", taken)
	l.given.Add(1)
	l.tokens.Release(1)
}

// weight is how many tokens a batch of so many shards takes.
func (l *Limit) weight(shards int) int64 {
	if l.shards {
		return int64(min(shards, l.most))
	}
	return 1
}

// acquire takes the tokens of a batch. It waits for them for as long as others come back, and
// then at most for the group's timeout.
func (l *Limit) acquire(ctx context.Context, g *Group, shards int) error {
	weight := l.weight(shards)
	if !l.tokens.TryAcquire(weight) {
		if err := l.wait(ctx, g, weight); err != nil {
			return err
		}
	}
	taken := l.taken.Add(weight)
	invariants.Check(taken <= int64(l.most), "%d of %d tokens are taken", taken, l.most)
	return nil
}

func (l *Limit) wait(ctx context.Context, g *Group, weight int64) error {
	bound, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(g.closing, cancel)()
	stop := l.endWithoutProgress(cancel, g.timeout)
	defer stop()
	if l.tokens.Acquire(bound, weight) == nil {
		return nil
	}
	switch {
	case g.closing.Err() != nil:
		return kv.ErrClosed
	case ctx.Err() != nil:
		return ctx.Err()
	}
	unit := "batches"
	if l.shards {
		unit = "shards"
	}
	return fmt.Errorf("%w: %d %s are under way already, and none ended within %v", kv.ErrTimeout, l.most, unit, g.timeout)
}

// endWithoutProgress calls end when no token has come back for so long, until stop.
func (l *Limit) endWithoutProgress(end func(), timeout time.Duration) (stop func()) {
	stopped := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		patience := time.NewTicker(timeout)
		defer patience.Stop()
		for before := l.given.Load(); ; {
			select {
			case <-stopped:
				return
			case <-patience.C:
			}
			now := l.given.Load()
			if now == before {
				end()
				return
			}
			before = now
		}
	})
	return func() {
		close(stopped)
		watching.Wait()
	}
}

// settled gives back the tokens that a batch of so many shards held for one that is now
// settled; left shards are not. The tokens of a batch that is larger than the limit come
// back with the first shards: others may then begin beside it.
func (l *Limit) settled(shards, left int) {
	if l.shards && shards-left > l.most || !l.shards && left > 0 {
		return
	}
	l.Give()
}
