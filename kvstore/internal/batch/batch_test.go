package batch

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

var layout = kv.Layout{BlockBytes: 32, ShardBytes: 8}

// shards returns the shards of a block in one piece of memory.
func shards(key byte) []kv.Shard {
	return layout.ByBlock([]kv.Key{{key}}, [][]byte{make([]byte, layout.BlockBytes)})
}

func newGroup() (*Group, *kv.Counters) {
	var count kv.Counters
	return NewGroup(layout, &count, time.Second), &count
}

func begin(t *testing.T, g *Group, m Method, limit *Limit, s []kv.Shard) *Batch {
	t.Helper()
	b, err := g.Begin(t.Context(), m, s, limit)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestSettledShardsAreCounted(t *testing.T) {
	g, count := newGroup()
	load := begin(t, g, Load, nil, shards(1))
	load.Settle(0, nil)
	load.Settle(1, &kv.CorruptError{})
	load.SettleRun(Run{First: 2, N: 1}, syscall.EIO)
	load.Settle(3, kv.ErrMiss)
	save := begin(t, g, Save, nil, shards(1))
	save.Settle(0, nil)
	save.SettleUncounted(1)
	save.SettleAll([]int{2, 3}, kv.ErrFull)
	for _, b := range []*Batch{load, save} {
		if err := b.Wait(t.Context()); err == nil {
			t.Error("a batch whose shards failed has no error")
		}
	}
	got := count.Stats("")
	want := kv.Stats{
		LoadedShards: 1, LoadedBytes: 8, MissedShards: 2, FailedLoads: 1,
		SavedShards: 1, SavedBytes: 8, FailedSaves: 2, Blocks: -1,
	}
	if got != want {
		t.Errorf("counted %+v, want %+v", got, want)
	}
	g.Close()
}

// What the batch holds is released before the caller can see that it is done.
func TestLastComesBeforeTheLastShardIsSettled(t *testing.T) {
	g, _ := newGroup()
	b := begin(t, g, Load, nil, shards(1))
	calls := 0
	b.Last = func() {
		calls++
		select {
		case <-b.Done():
			t.Error("the batch is done already")
		default:
		}
	}
	for i := range b.Len() {
		b.Settle(i, nil)
	}
	if calls != 1 {
		t.Errorf("Last was called %d times", calls)
	}
	g.Close()
}

func TestCloseEndsBatchesAndWaitsForThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGroup()
		b := begin(t, g, Load, nil, shards(1))
		if err := b.Ended(); err != nil {
			t.Errorf("a batch that goes on has ended: %v", err)
		}
		if err := g.Enter(); err != nil {
			t.Fatal(err)
		}
		g.Hold()
		g.Leave()
		closed := make(chan struct{})
		go func() {
			g.Close()
			close(closed)
		}()
		<-b.Context().Done()
		if err := b.Ended(); err != kv.ErrClosed {
			t.Errorf("ended with %v", err)
		}
		for i := range b.Len() {
			b.Settle(i, context.Canceled)
		}
		if err, _ := b.Result(0); err != kv.ErrClosed {
			t.Errorf("settled with %v", err)
		}
		synctest.Wait()
		select {
		case <-closed:
			t.Error("Close did not wait for a call")
		default:
		}
		g.Leave()
		<-closed
		if _, err := g.Begin(t.Context(), Load, shards(1), nil); err != kv.ErrClosed {
			t.Errorf("after Close: %v", err)
		}
		if g.Enter() != kv.ErrClosed || g.Err() != kv.ErrClosed {
			t.Error("a closed group admits calls")
		}
	})
}

// A call's context ends with the caller's and with Close, and the error says which.
func TestWith(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGroup()
		ctx, cancel := context.WithCancel(t.Context())
		inner, done := g.With(ctx)
		defer done()
		cancel()
		<-inner.Done()
		if err := g.Explain(inner.Err()); err != context.Canceled {
			t.Errorf("the caller's cancel: %v", err)
		}
		inner, done = g.With(t.Context())
		defer done()
		g.Close()
		<-inner.Done()
		if err := g.Explain(inner.Err()); err != kv.ErrClosed {
			t.Errorf("Close: %v", err)
		}
	})
}

func TestExplain(t *testing.T) {
	g, _ := newGroup()
	defer g.Close()
	for _, c := range []struct{ err, want error }{
		{syscall.ENOSPC, kv.ErrFull},
		{fmt.Errorf("write: %w", syscall.EDQUOT), kv.ErrFull},
		{workerpool.ErrOverdue, kv.ErrTimeout},
		{context.Canceled, context.Canceled},
		{syscall.ETIMEDOUT, kv.ErrTimeout},
		{syscall.EIO, syscall.EIO},
	} {
		if err := g.Explain(c.err); !errors.Is(err, c.want) || !errors.Is(err, c.err) {
			t.Errorf("%v: %v", c.err, err)
		}
	}
	if g.Explain(nil) != nil {
		t.Error("Explain makes an error of nil")
	}
	full := fmt.Errorf("%w: %w", kv.ErrFull, syscall.ENOSPC)
	if err := g.Explain(full); err != full {
		t.Errorf("explained twice: %v", err)
	}
}

// Batches wait at their limit until others have ended, but not after the timeout, the
// end of their context, or Close.
func TestLimits(t *testing.T) {
	for name, c := range map[string]struct {
		limit  *Limit
		settle int // shards after which another batch gets in
	}{
		"batches":    {LimitBatches(1), 4},
		"shards":     {LimitShards(7), 1},
		"few shards": {LimitShards(2), 2}, // fewer than a batch has
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g, _ := newGroup()
				first := begin(t, g, Load, c.limit, shards(1))
				began := time.Now()
				_, err := g.Begin(t.Context(), Load, shards(2), c.limit)
				if !errors.Is(err, kv.ErrTimeout) || time.Since(began) != time.Second {
					t.Errorf("after %v: %v", time.Since(began), err)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
				defer cancel()
				if _, err := g.Begin(ctx, Load, shards(2), c.limit); err != context.DeadlineExceeded {
					t.Errorf("with a context: %v", err)
				}
				second := make(chan *Batch)
				go func() {
					b, err := g.Begin(t.Context(), Load, shards(2), c.limit)
					if err != nil {
						t.Error(err)
					}
					second <- b
				}()
				for i := range first.Len() {
					if i == c.settle {
						break
					}
					synctest.Wait()
					select {
					case <-second:
						t.Fatalf("a batch got in when %d shards were settled", i)
					default:
					}
					first.Settle(i, nil)
				}
				b := <-second
				refused := make(chan error)
				go func() {
					_, err := g.Begin(t.Context(), Load, shards(3), c.limit)
					refused <- err
				}()
				synctest.Wait()
				go g.Close()
				if err := <-refused; err != kv.ErrClosed {
					t.Errorf("at Close: %v", err)
				}
				for i := c.settle; i < first.Len(); i++ {
					first.Settle(i, nil)
				}
				for i := range b.Len() {
					b.Settle(i, nil)
				}
				g.Close()
				if n := c.limit.taken.Load(); n != 0 {
					t.Errorf("%d tokens were not given back", n)
				}
			})
		})
	}
}

func TestRuns(t *testing.T) {
	one, two := shards(1), shards(2)
	apart := shards(1)
	apart[1].Buf = make([]byte, layout.ShardBytes)
	cut := shards(1)
	for i := range cut {
		cut[i].Buf = cut[i].Buf[:8:8] // neighbours in memory, yet of slices of their own
	}
	for name, c := range map[string]struct {
		shards []kv.Shard
		most   int
		runs   []int
	}{
		"a block":           {one, 1000, []int{4}},
		"two blocks":        {append(one[:4:4], two...), 1000, []int{4, 4}},
		"bounded":           {one, 23, []int{2, 2}},
		"apart":             {apart, 1000, []int{1, 1, 2}},
		"own slices":        {cut, 1000, []int{1, 1, 1, 1}},
		"backwards":         {[]kv.Shard{one[1], one[0]}, 1000, []int{1, 1}},
		"the same":          {[]kv.Shard{one[1], one[1]}, 1000, []int{1, 1}},
		"of other position": {[]kv.Shard{one[0], {Key: one[0].Key, Index: 2, Buf: one[1].Buf}}, 1000, []int{1, 1}},
	} {
		g, _ := newGroup()
		b := begin(t, g, Save, nil, c.shards)
		var got []int
		for i := 0; i < b.Len(); {
			r := b.Run(i)
			for b.Extend(&r, c.most) {
			}
			if len(r.Buf) != r.N*int(layout.ShardBytes) || r.First != i {
				t.Errorf("%s: a run of %d shards from %d has %d bytes", name, r.N, r.First, len(r.Buf))
			}
			got = append(got, r.N)
			b.SettleRun(r, nil)
			i += r.N
		}
		if fmt.Sprint(got) != fmt.Sprint(c.runs) {
			t.Errorf("%s: runs of %v, want %v", name, got, c.runs)
		}
		g.Close()
	}
}

// engine records how many moves it is given at once.
type engine struct {
	transfer.Engine
	given []int
}

func (e *engine) Do(_ context.Context, ops []transfer.Op) { e.given = append(e.given, len(ops)) }

func TestQueueHandsMovesOnAFewAtATime(t *testing.T) {
	var e engine
	q := Queue{Engine: &e, Context: t.Context()}
	q.Flush()
	for range 2*queueOps + 3 {
		q.Add(transfer.Op{})
	}
	q.Flush()
	if want := []int{queueOps, queueOps, 3}; fmt.Sprint(e.given) != fmt.Sprint(want) {
		t.Errorf("given %v, want %v", e.given, want)
	}
}

func TestPatienceIsShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p Patience
		if left := p.Left(time.Second); left != time.Second {
			t.Errorf("%v at first", left)
		}
		time.Sleep(400 * time.Millisecond)
		if left := p.Left(time.Second); left != 600*time.Millisecond {
			t.Errorf("%v for the second to wait", left)
		}
		p.Reset()
		if left := p.Left(time.Second); left != time.Second {
			t.Errorf("%v after a Reset", left)
		}
	})
}

// Batches of many callers end at the same time while the group is closed. When Close
// returns, every task is done.
func TestCloseWithManyBatches(t *testing.T) {
	for range 50 {
		g, _ := newGroup()
		limit := LimitShards(9)
		var callers sync.WaitGroup
		for range 4 {
			callers.Go(func() {
				for {
					b, err := g.Begin(context.Background(), Load, shards(1), limit)
					if err != nil {
						return
					}
					var done sync.WaitGroup
					for i := range b.Len() {
						done.Go(func() { b.Settle(i, b.Ended()) })
					}
					done.Wait()
				}
			})
		}
		time.Sleep(100 * time.Microsecond)
		g.Close()
		callers.Wait()
		if n := limit.taken.Load(); n != 0 {
			t.Fatalf("%d tokens were not given back", n)
		}
	}
}

// A batch waits for others for longer than the timeout while these go on.
func TestLimitTimesOutWithoutProgressOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := newGroup()
		limit := LimitShards(4)
		first := begin(t, g, Save, limit, shards(1))
		go func() {
			for i := range first.Len() {
				time.Sleep(900 * time.Millisecond)
				first.Settle(i, nil)
			}
		}()
		second := begin(t, g, Save, limit, shards(2))
		began := time.Now()
		if _, err := g.Begin(t.Context(), Save, shards(3), limit); !errors.Is(err, kv.ErrTimeout) || time.Since(began) != time.Second {
			t.Errorf("behind one that does not go on: after %v: %v", time.Since(began), err)
		}
		for i := range second.Len() {
			second.Settle(i, nil)
		}
		g.Close()
	})
}
