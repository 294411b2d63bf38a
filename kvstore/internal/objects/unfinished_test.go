package objects

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// openNarrow opens a store with room for so many unfinished blocks.
func openNarrow(t *testing.T, b Backend, blocks int64, timeout time.Duration) *Store {
	t.Helper()
	const head = 4096
	s := New(b, Options{Name: "Mine", Layout: layout, Timeout: timeout, UnfinishedBytes: blocks * (layout.BlockBytes + head)})
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// shardOf begins to save one shard of a block.
func shardOf(t *testing.T, s *Store, key byte, index int) *kv.Task {
	t.Helper()
	task, err := s.Save(t.Context(), []kv.Shard{{Key: kv.Key{key}, Index: index, Buf: content()[:layout.ShardBytes]}})
	if err != nil {
		t.Fatal(err)
	}
	return task
}

// Blocks that are never finished take no more memory than UnfinishedBytes, and the error of the next
// one says what to do.
func TestUnfinishedBlocksAreBounded(t *testing.T) {
	s := openNarrow(t, dir(t.TempDir()), 2, 300*time.Millisecond)
	task, err := s.Save(t.Context(), []kv.Shard{
		{Key: kv.Key{1}, Buf: content()[:layout.ShardBytes]}, {Key: kv.Key{2}, Buf: content()[:layout.ShardBytes]},
		{Key: kv.Key{3}, Buf: content()[:layout.ShardBytes]},
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = task.Wait(t.Context())
	var failed []error
	for _, err := range results(task) {
		if err != nil {
			failed = append(failed, err)
		}
	}
	if len(failed) != 1 || !errors.Is(failed[0], kv.ErrTimeout) || !strings.Contains(failed[0].Error(), "raise UnfinishedBytes from 24576") {
		t.Errorf("of three blocks, with room for two: %v", failed)
	}
	if n := s.blocks.Len(); n > 2 {
		t.Errorf("%d blocks are unfinished", n)
	}
}

// A block that is finished makes room for one that waits.
func TestSaveWaitsForRoom(t *testing.T) {
	s := openNarrow(t, dir(t.TempDir()), 1, time.Minute)
	if err := shardOf(t, s, 1, 0).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	waiting := shardOf(t, s, 2, 0)
	select {
	case <-waiting.Done():
		t.Error("there is room for two blocks")
	case <-time.After(50 * time.Millisecond):
	}
	for _, task := range []*kv.Task{shardOf(t, s, 1, 1), waiting, shardOf(t, s, 2, 1)} {
		if err := task.Wait(t.Context()); err != nil {
			t.Error(err)
		}
	}
	// One that is cancelled, or waits when the store is closed, ends.
	if err := shardOf(t, s, 3, 0).Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	cancelled, closed := shardOf(t, s, 4, 0), shardOf(t, s, 5, 0)
	cancelled.Cancel()
	if err := cancelled.Wait(t.Context()); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := closed.Wait(t.Context()); !errors.Is(err, kv.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}

// Whatever a backend does, a block that has ended leaves its room to the next.
func TestBlocksThatFailLeaveTheirRoom(t *testing.T) {
	full := func(context.Context, string, []byte) error { return kv.ErrFull }
	for name, b := range map[string]broken{
		"full":     {put: full},
		"panic":    {put: func(context.Context, string, []byte) error { panic("no such shelf") }},
		"no":       {has: func([]string, []bool) error { return errors.New("no such shelf") }},
		"conflict": {},
	} {
		t.Run(name, func(t *testing.T) {
			b.dir = dir(t.TempDir())
			s := openNarrow(t, b, 1, time.Minute)
			for n := range byte(5) {
				if name == "conflict" {
					if err := shardOf(t, s, n, 0).Wait(t.Context()); err != nil {
						t.Fatal(err)
					}
					task, err := s.Save(t.Context(), []kv.Shard{{Key: kv.Key{n}, Buf: make([]byte, layout.ShardBytes)}})
					if err == nil {
						err = task.Wait(t.Context())
					}
					if !errors.Is(err, kv.ErrConflict) {
						t.Errorf("block %d: %v", n, err)
					}
				} else if err := move(t, s.Save, kv.Key{n}, content()); err == nil || errors.Is(err, kv.ErrTimeout) {
					t.Errorf("block %d: %v", n, err)
				}
			}
		})
	}
}

// A Put that is overdue has its object still, and so its room.
func TestOverduePutKeepsItsRoom(t *testing.T) {
	d, release := dir(t.TempDir()), make(chan struct{})
	s := openNarrow(t, broken{dir: d, put: func(ctx context.Context, name string, object []byte) error {
		<-release
		return d.Put(ctx, name, object)
	}}, 1, 100*time.Millisecond)
	for n, want := range []string{"Put", "UnfinishedBytes"} {
		if err := move(t, s.Save, kv.Key{byte(n)}, content()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("save %d: %v; want %q", n, err, want)
		}
	}
	close(release)
	for patience := time.Now().Add(30 * time.Second); move(t, s.Save, kv.Key{2}, content()) != nil; {
		if time.Now().After(patience) {
			t.Fatal("there is no room half a minute after Put has returned")
		}
	}
}
