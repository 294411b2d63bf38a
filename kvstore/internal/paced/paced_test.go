package paced

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/fault"
	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
)

func TestStoreThatDiscards(t *testing.T) {
	storesuite.Run(t, storesuite.Subject{
		Discards: true,
		Open: func(t testing.TB, _ string, o storesuite.Options) kv.Store {
			return New(empty.New(o.Layout), Options{BytesPerSecond: 1e9, Latency: 100 * time.Microsecond})
		},
	})
}

func TestStore(t *testing.T) {
	storesuite.Run(t, storesuite.Subject{
		Open: func(t testing.TB, _ string, o storesuite.Options) kv.Store {
			blocks := max(int64(o.Blocks), 64)
			c, err := cache.New(empty.New(o.Layout), cache.Options{Namespace: o.Namespace, CapacityBytes: blocks * (o.Layout.BlockBytes + 8192)})
			if err != nil {
				t.Fatal(err)
			}
			return New(c, Options{BytesPerSecond: 1e9, Latency: 100 * time.Microsecond})
		},
	})
}

// At a speed near 0 the due time does not overflow.
func TestSlowestStore(t *testing.T) {
	layout := kv.Layout{BlockBytes: 8192, ShardBytes: 4096}
	for _, speed := range []float64{1e-7, 1e-300} {
		s := New(empty.New(layout), Options{BytesPerSecond: speed})
		task, err := s.Save(context.Background(), layout.ByBlock([]kv.Key{{1}}, [][]byte{make([]byte, 8192)}))
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-task.Done():
			t.Errorf("%g bytes a second: done at once", speed)
		case <-time.After(20 * time.Millisecond):
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		<-task.Done()
	}
}

func TestDurableStore(t *testing.T) {
	if testing.Short() {
		t.Skip("the suite over memory is much the same")
	}
	storesuite.Run(t, storesuite.Subject{
		Open: func(t testing.TB, dir string, o storesuite.Options) kv.Store {
			f, err := files.Open(files.Options{Dirs: []string{dir}, Layout: o.Layout, Namespace: o.Namespace})
			if err != nil {
				t.Fatal(err)
			}
			return New(f, Options{BytesPerSecond: 1e9, Latency: 100 * time.Microsecond})
		},
		Durable: true,
	})
}

func TestPipeIsOneForAll(t *testing.T) {
	var p pipe
	before := time.Now()
	// A hundred shards of a kilobyte at a megabyte a second: a millisecond each.
	first, each := p.reserve(100, 1000, 1e6)
	after := time.Now()
	if each != 1e6 || first.Before(before.Add(time.Millisecond)) || first.After(after.Add(time.Millisecond)) {
		t.Errorf("the first is due after %v, the others %v ns later each", first.Sub(before), each)
	}
	next, _ := p.reserve(1, 1000, 1e6)
	if d := next.Sub(first); d != 100*time.Millisecond {
		t.Errorf("another batch begins %v after the first", d)
	}
	// No bound: all at once and without delay.
	var fast pipe
	if _, each := fast.reserve(100, 1000, 0); each != 0 || fast.free.After(time.Now()) {
		t.Errorf("%v ns each", each)
	}
}

var layout = kv.Layout{BlockBytes: 4096, ShardBytes: 1024}

func batch(n int) (shards []kv.Shard) {
	for i := range n {
		shards = append(shards, kv.Shard{Key: kv.Key{byte(i)}, Index: i % 4, Buf: make([]byte, layout.ShardBytes)})
	}
	return shards
}

// A store of a kilobyte a minute still ends at once when it is cancelled or closed.
func TestASlowStoreEndsAtOnce(t *testing.T) {
	slow := Options{BytesPerSecond: 1024.0 / 60}
	for name, end := range map[string]func(*kv.Task, kv.Store){
		"cancelled": func(task *kv.Task, _ kv.Store) { task.Cancel() },
		"closed": func(_ *kv.Task, s kv.Store) {
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		},
	} {
		s := New(empty.New(layout), slow)
		task, err := s.Save(t.Context(), batch(100))
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-task.Done():
			t.Errorf("%s: done before a shard could be", name)
		default:
		}
		end(task, s)
		select {
		case <-task.Done():
		case <-time.After(20 * time.Second):
			t.Errorf("%s: still not done", name)
		}
		if err := s.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := s.Load(t.Context(), batch(1)); !errors.Is(err, kv.ErrClosed) {
			t.Errorf("%s: Load after Close: %v", name, err)
		}
	}
}

// A late shard delays those after it, as in a pipe, and each keeps its own error.
func TestShardsAreSettledInOrder(t *testing.T) {
	hold := make(chan struct{})
	behind := fault.New(empty.New(layout),
		fault.Fault{Method: fault.Save, Where: func(k kv.Key, _ int) bool { return k[0] == 2 }, Hold: hold},
		fault.Fault{Method: fault.Save, Where: func(k kv.Key, _ int) bool { return k[0] == 5 }, Err: kv.ErrFull})
	s := New(behind, Options{})
	defer s.Close()
	task, err := s.Save(t.Context(), batch(8))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for i, err := range task.All() {
		if i != n {
			t.Fatalf("shard %d was settled as number %d", i, n)
		}
		if (i == 5) != errors.Is(err, kv.ErrFull) {
			t.Errorf("shard %d: %v", i, err)
		}
		if n++; n == 2 {
			close(hold)
		}
	}
}

func TestRegistrarShowsThrough(t *testing.T) {
	if _, ok := New(fault.New(empty.New(layout)), Options{}).(kv.Registrar); !ok {
		t.Error("Register is not passed on")
	}
	if _, ok := New(plain{}, Options{}).(kv.Registrar); ok {
		t.Error("a store without Register has one")
	}
}

type plain struct{ kv.Store }

func (plain) Lookup(context.Context, []kv.Key, []bool) error { return nil }
