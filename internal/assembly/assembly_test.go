package assembly

import (
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

var key = kv.Key{1}

func open() (string, error) { return "payload", nil }

func never(t *testing.T) func() {
	return func() { t.Error("called again without a reason") }
}

// enter insists on a verdict.
func enter(t *testing.T, table *Table[string], index int, want Verdict, again func()) *Block[string] {
	t.Helper()
	b, got, err := table.Enter(key, index, open, again)
	if err != nil || got != want {
		t.Fatalf("shard %d: verdict %d, %v; want %d", index, got, err, want)
	}
	return b
}

func TestLastShardFinishes(t *testing.T) {
	table := New[string](3)
	for _, index := range []int{2, 0} {
		b := enter(t, table, index, Write, never(t))
		if table.Written(b, index) {
			t.Fatal("whole too early")
		}
	}
	enter(t, table, 0, Have, never(t))
	b := enter(t, table, 1, Write, never(t))
	if !table.Written(b, 1) {
		t.Fatal("not whole")
	}
	// Until it is visible nobody begins the block anew.
	called := 0
	enter(t, table, 1, Later, func() { called++ })
	if table.Finish(b); called != 1 || table.Len() != 0 {
		t.Errorf("called %d times, %d blocks left", called, table.Len())
	}
}

func TestSecondWriterTakesOver(t *testing.T) {
	table := New[string](2)
	first := enter(t, table, 0, Write, never(t))
	called := 0
	enter(t, table, 0, Later, func() { called++ })
	if !table.Failed(first, 0) {
		t.Error("a block of which nothing is written goes on")
	}
	table.Finish(first)
	if called != 1 {
		t.Errorf("called %d times", called)
	}
	second := enter(t, table, 0, Write, never(t))
	table.Written(second, 0)
	third := enter(t, table, 1, Write, never(t))
	if table.Failed(third, 1) {
		t.Error("a block that has a shard is given up at the failure of another")
	}
}

func TestOpenFails(t *testing.T) {
	table, full := New[string](1), errors.New("full")
	_, _, err := table.Enter(key, 0, func() (string, error) { return "", full }, never(t))
	if !errors.Is(err, full) || table.Len() != 0 {
		t.Errorf("%v, %d blocks", err, table.Len())
	}
}

func TestExpire(t *testing.T) {
	table := New[string](3)
	now := time.Now()
	table.now = func() time.Time { return now }
	b := enter(t, table, 0, Write, never(t))
	now = now.Add(time.Hour)
	if len(table.Expire(time.Minute)) != 0 {
		t.Error("expired while it is written")
	}
	table.Written(b, 0)
	if len(table.Expire(time.Minute)) != 0 {
		t.Error("expired just after it was written")
	}
	now = now.Add(time.Hour)
	if got := table.Expire(time.Minute); len(got) != 1 || got[0] != b {
		t.Fatalf("expired: %v", got)
	}
	if len(table.Expire(time.Minute)) != 0 {
		t.Error("expired twice")
	}
	table.Finish(b)
}

// Whatever many writers do and fail to do, the block becomes whole, and each of
// its shards has one writer at a time.
func TestManyWriters(t *testing.T) {
	const shards, writers = 8, 16
	table := New[string](shards)
	var (
		wg           sync.WaitGroup
		visible      atomic.Int32
		at           [shards]atomic.Int32
		write        func(w, index int)
		failuresLeft atomic.Int32
	)
	failuresLeft.Store(50)
	write = func(w, index int) {
		if visible.Load() > 0 {
			wg.Done()
			return
		}
		b, verdict, err := table.Enter(key, index, open, func() { go write(w, index) })
		switch {
		case err != nil:
			t.Error(err)
		case verdict == Later:
			return
		case verdict == Write:
			if at[index].Add(1) != 1 {
				t.Errorf("two write shard %d", index)
			}
			fails := failuresLeft.Add(-1) >= 0
			at[index].Add(-1)
			if fails {
				if table.Failed(b, index) {
					table.Finish(b)
				}
				go write(w, index)
				return
			}
			if table.Written(b, index) {
				visible.Add(1)
				table.Finish(b)
			}
		}
		wg.Done()
	}
	wg.Add(shards * writers)
	for w := range writers {
		for index := range shards {
			go write(w, index)
		}
	}
	wg.Wait()
	// A writer who looked just before it became visible may have begun it anew.
	if visible.Load() == 0 {
		t.Errorf("never whole; %d blocks unfinished", table.Len())
	}
}
