package segment

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Batches overlap, are cut up and cancelled, on a disk that fails, falls short and is
// late at random, in extreme layouts and sizes. No wrong bytes are loaded. When the disk
// has recovered, nothing is left pinned and everything works.
func TestChaos(t *testing.T) {
	for _, l := range []kv.Layout{
		{BlockBytes: 1, ShardBytes: 1}, {BlockBytes: 3, ShardBytes: 1},
		{BlockBytes: kv.MaxShards, ShardBytes: 1}, {BlockBytes: 10000, ShardBytes: 5000},
	} {
		for _, c := range []struct{ segments, slots int }{{3, 1}, {4, 2}, {8, 3}} {
			t.Run(fmt.Sprintf("%d in %d, %d segments of %d", l.BlockBytes, l.Shards(), c.segments, c.slots), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					m := newInterceptor()
					o := options(t.TempDir(), l, c.segments, c.slots)
					o.Engine, o.Timeout, o.CarryFraction = m, time.Second, maxCarry
					chaos(t, open(t, o), m)
				})
			})
		}
	}
}

func chaos(t *testing.T, s *Store, m *interceptor) {
	m.intercept(badDisk)
	var all sync.WaitGroup
	for w := range 6 {
		all.Go(func() {
			rng := rand.New(rand.NewPCG(uint64(w), 7))
			for range 4 + 20/s.Layout().Shards() {
				someBatch(t, s, rng)
			}
		})
	}
	all.Wait()
	m.intercept(nil)
	settle(t, s)
	until(t, "it is written to again", func() bool {
		return beginSave(t, s, shardsOf(s.Layout(), keyOf(9000))).Wait(context.Background()) == nil
	})
	loads(t, s, keyOf(9000))
	s.mu.RLock()
	defer s.mu.RUnlock()
	held := 0
	for at := range s.table.slots {
		if s.table.has(uint32(at)) {
			held++
		}
	}
	if held != s.table.count {
		t.Errorf("%d blocks are held, counted as %d", held, s.table.count)
	}
}

func badDisk(op transfer.Op, do func()) {
	switch n := rand.IntN(40); {
	case n == 0:
		op.Done(0, syscall.EIO)
	case n == 1:
		go op.Done(0, kv.ErrTimeout)
	case n == 2 && !op.Write:
		op.Done(len(op.Buf)/2, nil)
	case n == 3:
		go func() {
			time.Sleep(time.Millisecond)
			do()
		}()
	default:
		do()
	}
}

// someBatch loads or saves some blocks or shards, and cancels some of these batches.
func someBatch(t *testing.T, s *Store, rng *rand.Rand) {
	var keys []kv.Key
	for range 1 + rng.IntN(4) {
		keys = append(keys, keyOf(rng.IntN(2*len(s.table.slots))))
	}
	shards := shardsOf(s.Layout(), keys...)
	if rng.IntN(3) == 0 {
		rng.Shuffle(len(shards), func(i, j int) { shards[i], shards[j] = shards[j], shards[i] })
		shards = shards[:1+rng.IntN(len(shards))]
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if rng.IntN(4) == 0 {
		defer time.AfterFunc(time.Duration(rng.IntN(1000))*time.Microsecond, cancel).Stop()
	}
	if rng.IntN(2) == 0 {
		task, err := s.Save(ctx, filled(shards))
		if err == nil {
			err = task.Wait(context.Background())
		}
		if errors.Is(err, kv.ErrMiss) {
			t.Errorf("a save: %v", err)
		}
		return
	}
	task, err := s.Load(ctx, shards)
	if err != nil {
		t.Errorf("a load: %v", err)
		return
	}
	for i, err := range task.All() {
		if n, _ := content(shards[i].Key, shards[i].Index).Check(shards[i].Buf); err == nil && n > 0 {
			t.Errorf("%d wrong bytes", n)
		}
	}
}

// idle reports whether no segment is being read or written.
func idle(s *Store) bool { return inUse(s) == "" }

// inUse says what is being read or written.
func inUse(s *Store) string {
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, seg := range s.segments {
		if pins := seg.pins.Load(); pins != 0 || seg.writing != 0 {
			return fmt.Sprintf("segment %d with %d pins and %d blocks that are written", seg.number, pins, seg.writing)
		}
	}
	if free, fresh := len(s.heads.free), len(s.newHeads.free); free+fresh != 2*headBuffers {
		return fmt.Sprintf("heads: %d to read and %d to write", headBuffers-free, headBuffers-fresh)
	}
	return ""
}

// settle waits until nothing is in use and no block unfinished. That takes as long as the disk takes to flush the segments that are
// full, one after the other.
func settle(t *testing.T, s *Store) {
	t.Helper()
	for patience := time.Now().Add(3 * time.Minute); ; time.Sleep(time.Millisecond) {
		used, unfinished := inUse(s), s.unfinished.Len()
		if used == "" && unfinished == 0 {
			return
		}
		if time.Now().After(patience) {
			t.Fatalf("in use: %s; %d blocks are unfinished", used, unfinished)
		}
	}
}
