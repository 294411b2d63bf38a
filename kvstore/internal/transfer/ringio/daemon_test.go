package ringio_test

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/kvstore/memory"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

func serve(t testing.TB) *daemontest.Daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("needs a mount; -short")
	}
	return daemontest.Serve(t)
}

func engine(t testing.TB, d *daemontest.Daemon, o ringio.Options) *ringio.Engine {
	t.Helper()
	o.Mount = d.Mount
	e, err := ringio.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { e.Close() })
	return e
}

// shared returns registered memory, which exists until the engine is closed.
func shared(t testing.TB, e *ringio.Engine, sizeBytes int) *memory.Memory {
	t.Helper()
	m, err := memory.New(int64(sizeBytes))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		e.Close()
		m.Close()
	})
	if err := e.Register(m.Name(), m.Bytes()); err != nil {
		t.Fatal(err)
	}
	return m
}

func open(t testing.TB, e *ringio.Engine, d *daemontest.Daemon, name string) transfer.File {
	t.Helper()
	return openAs(t, e, d, name, os.O_RDONLY)
}

func create(t testing.TB, e *ringio.Engine, d *daemontest.Daemon, name string) transfer.File {
	t.Helper()
	return openAs(t, e, d, name, os.O_RDWR|os.O_CREATE)
}

func openAs(t testing.TB, e *ringio.Engine, d *daemontest.Daemon, name string, flags int) transfer.File {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(d.Mount, name), flags, 0o644)
	if err != nil {
		t.Fatal(err)
	}
	x, err := e.Open(f)
	if err != nil {
		f.Close()
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

type result struct {
	n     int
	err   error
	times int
}

// results does all moves and waits for them.
func results(ctx context.Context, e *ringio.Engine, ops []transfer.Op) []result {
	all := make([]result, len(ops))
	var wg sync.WaitGroup
	wg.Add(len(ops))
	for i := range ops {
		ops[i].Done = func(n int, err error) {
			all[i] = result{n, err, all[i].times + 1}
			wg.Done() // panics when it is once too often
		}
	}
	e.Do(ctx, ops)
	wg.Wait()
	return all
}

func do(t testing.TB, e *ringio.Engine, op transfer.Op) (int, error) {
	t.Helper()
	r := results(t.Context(), e, []transfer.Op{op})[0]
	return r.n, r.err
}

// all does moves, which must succeed.
func all(t testing.TB, e *ringio.Engine, ops []transfer.Op) {
	t.Helper()
	for i, r := range results(t.Context(), e, ops) {
		if r.err != nil || r.n != len(ops[i].Buf) {
			t.Errorf("move of %d bytes: %d, %v", len(ops[i].Buf), r.n, r.err)
		}
	}
}
