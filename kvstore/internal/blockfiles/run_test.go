package blockfiles

import (
	"context"
	"os"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
)

// counting counts an engine's moves and open files.
type counting struct {
	transfer.Engine
	mu    sync.Mutex
	moves int
	opens int
}

func (c *counting) Open(f *os.File) (transfer.File, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.opens++
	return c.Engine.Open(f)
}

func (c *counting) Do(ctx context.Context, ops []transfer.Op) {
	c.mu.Lock()
	c.moves += len(ops)
	c.mu.Unlock()
	c.Engine.Do(ctx, ops)
}

// since resets the counts.
func (c *counting) since() (moves, opens int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	moves, opens = c.moves, c.opens
	c.moves, c.opens = 0, 0
	return moves, opens
}

func openCounting(t *testing.T, o Options) (*Store, *counting) {
	t.Helper()
	c := &counting{}
	return openOver(t, o, func(e transfer.Engine) transfer.Engine {
		c.Engine = e
		return c
	}), c
}

// openOver opens a store over an engine that is wrapped, without Roots in a directory
// of its own.
func openOver(t *testing.T, o Options, wrap func(transfer.Engine) transfer.Engine) *Store {
	t.Helper()
	o.Name, o.TempDir = "Test", ".temp"
	if o.Format == nil {
		o.Format = UCM{BlockBytes: o.Layout.BlockBytes}
	}
	if o.Roots == nil {
		o.Roots = []string{t.TempDir()}
	}
	o.Engine = wrap(posix.New(posix.Options{Streams: 2, Timeout: o.Timeout}))
	s, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func wait(t *testing.T, task *kv.Task, err error) {
	t.Helper()
	if err == nil {
		err = task.Wait(t.Context())
	}
	if err != nil {
		t.Fatal(err)
	}
}

// Shards that are neighbours in the file and in memory are moved at once, and no others
// are.
func TestRunsAreMovedAtOnce(t *testing.T) {
	l := kv.Layout{BlockBytes: 4000, ShardBytes: 1000}
	s, c := openCounting(t, Options{Layout: l, OpenFiles: 10})
	keys := []kv.Key{{1}, {2}}
	both := make([]byte, 2*l.BlockBytes)
	bufs := [][]byte{both[:l.BlockBytes], both[l.BlockBytes:]}
	apart := l.ByBlock(keys, bufs)
	for i := range apart {
		apart[i].Buf = make([]byte, l.ShardBytes)
	}
	for _, test := range []struct {
		name   string
		shards []kv.Shard
		moves  int
	}{
		{"by block", l.ByBlock(keys, bufs), 2},
		{"by layer", l.ByLayer(keys, bufs), 8},
		{"a piece", l.ByBlock(keys, bufs)[1:4], 1},
		{"over the border", l.ByBlock(keys, bufs)[2:6], 2},
		{"apart in memory", apart, 8},
		{"twice", append(l.ByBlock(keys[:1], bufs), l.ByBlock(keys[:1], bufs)...), 2},
	} {
		if test.name == "by block" {
			task, err := s.Save(t.Context(), test.shards)
			wait(t, task, err)
			if moves, _ := c.since(); moves != test.moves {
				t.Errorf("saved %s by %d moves", test.name, moves)
			}
		}
		task, err := s.Load(t.Context(), test.shards)
		wait(t, task, err)
		if moves, _ := c.since(); moves != test.moves {
			t.Errorf("loaded %s by %d moves, want %d", test.name, moves, test.moves)
		}
	}
}

// A block that stays open is not opened again. Those used least recently are closed.
func TestOpenFiles(t *testing.T) {
	l := kv.Layout{BlockBytes: 1000, ShardBytes: 1000}
	s, c := openCounting(t, Options{Layout: l, OpenFiles: 2})
	buf := make([]byte, 1000)
	keys := []kv.Key{{1}, {2}, {3}}
	task, err := s.Save(t.Context(), l.ByBlock(keys, [][]byte{buf, buf, buf}))
	wait(t, task, err)
	c.since()
	for step, use := range []struct{ block, opens int }{{0, 1}, {1, 1}, {0, 0}, {2, 1}, {0, 0}, {1, 1}, {2, 1}} {
		task, err := s.Load(t.Context(), l.ByBlock(keys[use.block:][:1], [][]byte{buf}))
		wait(t, task, err)
		if _, opens := c.since(); opens != use.opens {
			t.Errorf("step %d: block %d opened %d times", step, use.block, opens)
		}
	}
}

// A batch waits while too many shards are under way, and no longer than its context.
func TestAdmission(t *testing.T) {
	l := kv.Layout{BlockBytes: 1000, ShardBytes: 1000}
	s, _ := openCounting(t, Options{Layout: l, RunningQueueDepth: 2})
	buf := make([]byte, 3000)
	shards := l.ByBlock([]kv.Key{{1}, {2}, {3}}, [][]byte{buf[:1000], buf[1000:2000], buf[2000:]})
	task, err := s.Save(t.Context(), shards) // larger than the limit, but alone
	wait(t, task, err)
	other, err := s.group.Begin(t.Context(), batch.Load, shards[:2], s.limits[batch.Load])
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	refused := make(chan error)
	go func() {
		_, err := s.Load(ctx, shards)
		refused <- err
	}()
	cancel()
	if err := <-refused; err != context.Canceled {
		t.Error(err)
	}
	other.SettleAll([]int{0, 1}, kv.ErrMiss)
	task, err = s.Load(t.Context(), shards)
	wait(t, task, err)
}
