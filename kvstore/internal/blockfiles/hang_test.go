package blockfiles

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// hanging is an engine whose Open, or whose moves, hang until end is closed.
type hanging struct {
	transfer.Engine
	files  bool
	writes bool // only moves that write hang
	end    chan struct{}
	begun  atomic.Int64 // calls of Open or Do that were held
}

func (h *hanging) Open(f *os.File) (transfer.File, error) {
	if h.files {
		h.begun.Add(1)
		<-h.end
	}
	return h.Engine.Open(f)
}

func (h *hanging) Do(ctx context.Context, ops []transfer.Op) {
	if h.files {
		h.Engine.Do(ctx, ops)
		return
	}
	if h.writes && !ops[0].Write {
		h.Engine.Do(ctx, ops)
		return
	}
	h.begun.Add(int64(len(ops)))
	go func() {
		<-h.end
		h.Engine.Do(context.Background(), ops)
	}()
}

// A Save of a block that another caller is writing waits no longer than the timeout, or
// until it is cancelled, whatever the other does.
func TestWriterThatHangs(t *testing.T) {
	for name, c := range map[string]struct {
		files   bool
		timeout time.Duration
		want    error
	}{
		"making its file": {files: true, timeout: 500 * time.Millisecond, want: kv.ErrTimeout},
		"writing":         {timeout: 500 * time.Millisecond, want: kv.ErrTimeout},
		"cancelled":       {want: context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			l := kv.Layout{BlockBytes: 1200, ShardBytes: 100}
			h := &hanging{files: c.files, end: make(chan struct{})}
			goOn := sync.OnceFunc(func() { close(h.end) })
			s := openOver(t, Options{Layout: l, Timeout: c.timeout}, func(e transfer.Engine) transfer.Engine {
				h.Engine = e
				return h
			})
			t.Cleanup(goOn) // before the store is closed, which waits for the engine
			shards := l.ByBlock([]kv.Key{{1}}, [][]byte{make([]byte, l.BlockBytes)})
			save := func() *kv.Task {
				task, err := s.Save(t.Context(), shards)
				if err != nil {
					t.Fatal(err)
				}
				return task
			}
			first := save()
			eventually(t, "the first has every shard", func() bool { return h.begun.Load() == 1 })
			others := []*kv.Task{save(), save(), save()}
			patience := time.After(30 * time.Second)
			for i, task := range others {
				if c.want == context.Canceled {
					task.Cancel()
				}
				select {
				case <-task.Done():
				case <-patience:
					t.Fatalf("writer %d waits for more than 30 s", i+2)
				}
				for _, err := range task.All() {
					if !errors.Is(err, c.want) {
						t.Errorf("writer %d: %v", i+2, err)
					}
				}
			}
			goOn()
			<-first.Done()
			eventually(t, "no temporary file is left", func() bool {
				left, err := os.ReadDir(filepath.Join(s.roots[0].dir, ".temp"))
				return err == nil && len(left) == 0
			})
			wait(t, save(), nil)
		})
	}
}

func eventually(t *testing.T, what string, is func() bool) {
	t.Helper()
	for patience := time.Now().Add(30 * time.Second); !is(); time.Sleep(time.Millisecond) {
		if time.Now().After(patience) {
			t.Fatalf("not in half a minute: %s", what)
		}
	}
}

// Saves that hang, as many as are accepted, keep no load from being accepted and served.
func TestLoadsDoNotWaitForSaves(t *testing.T) {
	l := kv.Layout{BlockBytes: 1200, ShardBytes: 100}
	h := &hanging{writes: true, end: make(chan struct{})}
	s := openOver(t, Options{Layout: l, RunningQueueDepth: 2 * l.Shards()}, func(e transfer.Engine) transfer.Engine {
		h.Engine = e
		return h
	})
	goOn := sync.OnceFunc(func() { close(h.end) })
	t.Cleanup(goOn) // before the store is closed, which waits for the engine
	shards := func(key byte) []kv.Shard {
		return l.ByBlock([]kv.Key{{key}}, [][]byte{make([]byte, l.BlockBytes)})
	}
	save := func(key byte) *kv.Task {
		task, err := s.Save(t.Context(), shards(key))
		if err != nil {
			t.Fatal(err)
		}
		return task
	}
	held := []*kv.Task{save(1), save(2)}
	eventually(t, "both are being written", func() bool { return h.begun.Load() == 2 })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	task, err := s.Load(ctx, shards(3))
	if err != nil {
		t.Fatalf("a load is not accepted while saves hang: %v", err)
	}
	for _, err := range task.All() {
		if !errors.Is(err, kv.ErrMiss) {
			t.Error(err)
		}
	}
	goOn()
	for _, task := range held {
		wait(t, task, nil)
	}
}
