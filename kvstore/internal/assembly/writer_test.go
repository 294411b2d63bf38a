package assembly

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var two = kv.Layout{BlockBytes: 2, ShardBytes: 1}

// shards are those of a block of two, which a writer has computed.
func shards(by byte) []kv.Shard {
	return []kv.Shard{{Key: key, Index: 0, Buf: []byte{by}}, {Key: key, Index: 1, Buf: []byte{by}}}
}

// write enters a shard that must be written.
func write(t *testing.T, table *Table[string], w *Writer, s kv.Shard) *Block[string] {
	t.Helper()
	b, verdict, err := table.Enter(w, s, open, never(t))
	if verdict != Write || err != nil {
		t.Fatalf("shard %d: verdict %d, %v", s.Index, verdict, err)
	}
	b.Sums[s.Index] = sum(s)
	return b
}

func TestABatchWithAllShardsOwnsTheBlock(t *testing.T) {
	table := New[string](2, sum)
	a, b := shards(1), shards(2)
	owner := WriterOf(t.Context(), two, a)
	block := write(t, table, owner, a[0])
	table.Written(block, 0)
	called := 0
	for _, w := range []*Writer{WriterOf(t.Context(), two, b), WriterOf(t.Context(), two, b[1:])} {
		if _, verdict, err := table.Enter(w, b[1], open, func() { called++ }); verdict != Later || err != nil {
			t.Fatalf("verdict %d, %v", verdict, err)
		}
	}
	if table.Written(write(t, table, owner, a[1]), 1) != Whole || called != 0 {
		t.Errorf("not whole; others were called %d times", called)
	}
	if table.Finish(block); called != 2 {
		t.Errorf("others were called %d times", called)
	}
}

// What a batch has left behind does not hold up others.
func TestOwningEndsWithTheBatch(t *testing.T) {
	table := New[string](2, sum)
	ctx, cancel := context.WithCancel(t.Context())
	a, b := shards(1), shards(2)
	block := write(t, table, WriterOf(ctx, two, a), a[0])
	table.Written(block, 0)
	woken := make(chan struct{})
	next := WriterOf(t.Context(), two, b)
	if _, verdict, _ := table.Enter(next, b[1], open, func() { close(woken) }); verdict != Later {
		t.Fatalf("verdict %d", verdict)
	}
	cancel()
	<-woken
	table.Written(write(t, table, next, b[1]), 1)
	if got := write(t, table, next, b[0]); got != block || table.Written(got, 0) != Whole {
		t.Error("the block that was taken over does not become whole")
	}
	if block.Sums[0] != 2 || block.Sums[1] != 2 {
		t.Errorf("a block of %v", block.Sums)
	}
}

// What a cancelled batch has left behind makes no block together with parts of another's.
func TestPartsDoNotCompleteACancelledBatch(t *testing.T) {
	for name, during := range map[string]bool{"while its last write goes on": true, "after it": false} {
		t.Run(name, func(t *testing.T) {
			table := New[string](2, sum)
			ctx, cancel := context.WithCancel(t.Context())
			a, b := shards(1), shards(2)
			block := write(t, table, WriterOf(ctx, two, a), a[1])
			if !during {
				table.Written(block, 1)
			}
			cancel()
			if during {
				called := 0
				if _, verdict, err := table.Enter(some, b[0], open, func() { called++ }); verdict != Later || err != nil {
					t.Fatalf("verdict %d, %v", verdict, err)
				}
				if table.Written(block, 1); called != 1 {
					t.Fatalf("called %d times", called)
				}
			}
			if outcome := table.Written(write(t, table, some, b[0]), 0); outcome != Part {
				t.Fatalf("outcome %d: a block of %v", outcome, block.Sums)
			}
			if outcome := table.Written(write(t, table, some, b[1]), 1); outcome != Whole || block.Sums[0] != 2 || block.Sums[1] != 2 {
				t.Errorf("outcome %d: a block of %v", outcome, block.Sums)
			}
		})
	}
}

func TestABatchWithAllShardsTakesOverWhatPartsHaveBegun(t *testing.T) {
	table := New[string](2, sum)
	a, b := shards(1), shards(2)
	first := write(t, table, some, a[0])
	called := 0
	owner := WriterOf(t.Context(), two, b)
	if _, verdict, _ := table.Enter(owner, b[0], open, func() { called++ }); verdict != Later {
		t.Errorf("while a shard is being written: verdict %d", verdict)
	}
	if table.Written(first, 0); called != 1 {
		t.Errorf("called %d times", called)
	}
	table.Written(write(t, table, owner, b[1]), 1)
	if table.Written(write(t, table, owner, b[0]), 0) != Whole {
		t.Error("not whole")
	}
}

// Two batches bring the same shard with different bytes: while the first is written, and
// after. Parts are then refused until they stop coming. A batch with all shards is not.
func TestPartsThatDiffer(t *testing.T) {
	for name, during := range map[string]bool{"while the first is written": true, "after it": false} {
		t.Run(name, func(t *testing.T) {
			table := New[string](2, sum)
			now := time.Now()
			table.now = func() time.Time { return now }
			a, b := shards(1), shards(2)
			block := write(t, table, some, a[0])
			if during {
				if _, verdict, err := table.Enter(some, b[0], open, func() {}); verdict != Later || err != nil {
					t.Fatalf("verdict %d, %v", verdict, err)
				}
				if outcome := table.Written(block, 0); outcome != Dead || !errors.Is(outcome.Err(key), kv.ErrConflict) {
					t.Fatalf("outcome %d, %v", outcome, outcome.Err(key))
				}
			} else {
				table.Written(block, 0)
				if dead, _, err := table.Enter(some, b[0], open, never(t)); dead != block || !errors.Is(err, kv.ErrConflict) {
					t.Fatalf("%v, %v", dead, err)
				}
			}
			table.Finish(block)
			for range 3 {
				now = now.Add(restOf / 2)
				if b, _, err := table.Enter(some, a[1], open, never(t)); b != nil || !errors.Is(err, kv.ErrConflict) {
					t.Fatalf("a part of a disputed block: %v", err)
				}
			}
			owner := WriterOf(t.Context(), two, b)
			if whole := write(t, table, owner, b[0]); !table.Failed(whole, 0) {
				t.Error("not dead")
			} else {
				table.Finish(whole)
			}
			now = now.Add(restOf)
			write(t, table, some, a[1])
		})
	}
}

// A dispute waits for the shards that are being written.
func TestADisputedBlockLivesUntilItsLastWrite(t *testing.T) {
	table := New[string](2, sum)
	a, b := shards(1), shards(2)
	block := write(t, table, some, a[0])
	table.Written(block, 0)
	write(t, table, some, a[1])
	if dead, _, err := table.Enter(some, b[0], open, never(t)); dead != nil || !errors.Is(err, kv.ErrConflict) {
		t.Fatalf("%v, %v", dead, err)
	}
	called := 0
	if _, verdict, _ := table.Enter(WriterOf(t.Context(), two, b), b[0], open, func() { called++ }); verdict != Later {
		t.Errorf("verdict %d", verdict)
	}
	if table.Written(block, 1) != Dead {
		t.Error("not dead")
	}
	if table.Finish(block); called == 0 || table.Len() != 0 {
		t.Errorf("called %d times, %d blocks left", called, table.Len())
	}
}
