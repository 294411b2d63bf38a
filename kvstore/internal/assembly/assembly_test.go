package assembly

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var key = kv.Key{1}

// sum is a checksum that differs for different first bytes.
func sum(s kv.Shard) uint64 {
	if len(s.Buf) == 0 {
		return 0
	}
	return uint64(s.Buf[0])
}

// some is a batch with some of a block's shards.
var some = WriterOf(context.Background(), kv.Layout{BlockBytes: 8, ShardBytes: 1}, []kv.Shard{{Key: key}})

func open() (string, error) { return "payload", nil }

func never(t *testing.T) func() {
	return func() { t.Error("called again without a reason") }
}

// enter checks the verdict.
func enter(t *testing.T, table *Table[string], index int, want Verdict, again func()) *Block[string] {
	t.Helper()
	b, got, err := table.Enter(some, kv.Shard{Key: key, Index: index}, open, again)
	if err != nil || got != want {
		t.Fatalf("shard %d: verdict %d, %v; want %d", index, got, err, want)
	}
	return b
}

func TestLastShardFinishes(t *testing.T) {
	table := New[string](3, sum)
	for _, index := range []int{2, 0} {
		b := enter(t, table, index, Write, never(t))
		called := 0
		enter(t, table, index, Later, func() { called++ })
		if table.Written(b, index) != Part {
			t.Fatal("whole too early")
		}
		if called != 1 {
			t.Errorf("shard %d: called %d times", index, called)
		}
	}
	enter(t, table, 0, Have, never(t))
	b := enter(t, table, 1, Write, never(t))
	if table.Written(b, 1) != Whole {
		t.Fatal("not whole")
	}
	// Until the block is visible no writer begins it anew.
	called := 0
	enter(t, table, 1, Later, func() { called++ })
	if table.Finish(b); called != 1 || table.Len() != 0 {
		t.Errorf("called %d times, %d blocks left", called, table.Len())
	}
}

func TestSecondWriterTakesOver(t *testing.T) {
	table := New[string](2, sum)
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
	enter(t, table, 1, Later, func() { called++ })
	if table.Failed(third, 1) {
		t.Error("a block that has a shard is given up at the failure of another")
	}
	if called != 2 {
		t.Errorf("called %d times", called)
	}
}

func TestOpenFails(t *testing.T) {
	table, full := New[string](1, sum), errors.New("full")
	called := 0
	_, _, err := table.Enter(some, kv.Shard{Key: key}, func() (string, error) {
		enter(t, table, 0, Later, func() { called++ })
		return "", full
	}, never(t))
	if !errors.Is(err, full) || table.Len() != 0 || called != 1 {
		t.Errorf("%v, %d blocks, called %d times", err, table.Len(), called)
	}
}

func TestExpire(t *testing.T) {
	table := New[string](3, sum)
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
	enter(t, table, 0, Have, never(t))
	if len(table.Expire(time.Minute)) != 0 {
		t.Error("expired while somebody saves it again")
	}
	now = now.Add(time.Hour)
	if got := table.Expire(time.Minute); len(got) != 1 || got[0] != b {
		t.Fatalf("expired: %v", got)
	}
	if len(table.Expire(time.Minute)) != 0 {
		t.Error("expired twice")
	}
	called := 0
	enter(t, table, 1, Later, func() { called++ })
	if table.Finish(b); called != 1 || table.Len() != 0 {
		t.Errorf("called %d times, %d blocks left", called, table.Len())
	}
}

// Between the failure of a block's only shard and Finish, no writer gets the payload that is
// about to be dropped.
func TestGivenUpIsNotEntered(t *testing.T) {
	table := New[string](2, sum)
	b := enter(t, table, 0, Write, never(t))
	if !table.Failed(b, 0) {
		t.Fatal("a block of which nothing is written goes on")
	}
	if len(table.Expire(0)) != 0 {
		t.Error("given up twice")
	}
	called := 0
	enter(t, table, 0, Later, func() { called++ })
	enter(t, table, 1, Later, func() { called++ })
	if table.Finish(b); called != 2 {
		t.Errorf("called %d times", called)
	}
	if enter(t, table, 0, Write, never(t)) == b {
		t.Error("the block that was given up is written to")
	}
}

// Blocks fail to open, lose shards, become whole, are disputed and expire, all at once. Each payload
// is finished once, and every caller that waits is called.
func TestNobodyIsForgotten(t *testing.T) {
	const shards, writers, rounds = 3, 8, 500
	table := New[*atomic.Bool](shards, sum) // whether it has ended
	began, ticks := time.Now(), atomic.Int64{}
	table.now = func() time.Time { return began.Add(time.Duration(ticks.Add(1)) * restOf / 4) }
	full := errors.New("full")
	finish := func(b *Block[*atomic.Bool]) {
		if b.Payload.Swap(true) {
			t.Error("a payload has ended twice")
		}
		table.Finish(b)
	}
	var all, reaper sync.WaitGroup
	stop := make(chan struct{})
	reaper.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			for _, b := range table.Expire(0) {
				finish(b)
			}
		}
	})
	for w := range writers {
		random := rand.New(rand.NewPCG(uint64(w), 0))
		open := func() (*atomic.Bool, error) {
			if random.IntN(8) == 0 {
				return nil, full
			}
			return new(atomic.Bool), nil
		}
		all.Go(func() {
			for range rounds {
				key, index := kv.Key{byte(random.IntN(2))}, random.IntN(shards)
				shard := kv.Shard{Key: key, Index: index, Buf: []byte{byte(random.IntN(10) / 9)}}
				called := make(chan struct{}, 1)
				for entered := false; !entered; {
					b, verdict, err := table.Enter(some, shard, open, func() { called <- struct{}{} })
					switch entered = true; {
					case errors.Is(err, kv.ErrConflict) && b != nil:
						finish(b)
					case err != nil:
					case verdict == Later:
						<-called
						entered = false
					case verdict == Have:
					case b.Payload.Load():
						t.Error("written to after its end")
					case random.IntN(6) == 0:
						if table.Failed(b, index) {
							finish(b)
						}
					default:
						b.Sums[index] = sum(shard)
						if outcome := table.Written(b, index); outcome == Whole || outcome == Dead {
							finish(b)
						}
					}
				}
			}
		})
	}
	all.Wait()
	close(stop)
	reaper.Wait()
	for _, b := range table.Expire(0) {
		finish(b)
	}
	if table.Len() != 0 {
		t.Errorf("%d blocks never ended", table.Len())
	}
}

// Many writers write and fail at random. The block becomes whole, and each of its shards
// has one writer at a time.
func TestManyWriters(t *testing.T) {
	const shards, writers = 8, 16
	table := New[string](shards, sum)
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
		b, verdict, err := table.Enter(some, kv.Shard{Key: key, Index: index}, open, func() { go write(w, index) })
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
			if table.Written(b, index) == Whole {
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
	// A writer that looked just before the block became visible may have begun it again.
	if visible.Load() == 0 {
		t.Errorf("never whole; %d blocks unfinished", table.Len())
	}
}

// A block is given up once, and only while no writer works on it.
func TestGiveUp(t *testing.T) {
	table := New[string](2, sum)
	useless := func(payload string) bool { return payload == "payload" }
	if table.GiveUp(key, useless) != nil {
		t.Error("of a block that is not there")
	}
	b := enter(t, table, 0, Write, never(t))
	if table.GiveUp(key, useless) != nil {
		t.Error("while a shard is being written")
	}
	table.Written(b, 0)
	if table.GiveUp(key, func(string) bool { return false }) != nil {
		t.Error("of one that is of use")
	}
	if table.GiveUp(key, useless) != b || table.GiveUp(key, useless) != nil {
		t.Error("not once")
	}
	called := 0
	enter(t, table, 1, Later, func() { called++ })
	if table.Finish(b); called != 1 {
		t.Errorf("called %d times", called)
	}
	enter(t, table, 0, Write, never(t))
}
