package kvstore

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/ucmlog"
)

// nothing is a backend that is always full and empty.
type nothing struct{ closed atomic.Int32 }

func (*nothing) Has(_ context.Context, _ []string, found []bool) error { return nil }
func (*nothing) Get(context.Context, string, int64, []byte) error      { return ErrMiss }
func (*nothing) Put(context.Context, string, []byte) error             { return ErrFull }
func (*nothing) Delete(context.Context, []string) error                { return nil }
func (*nothing) List(context.Context, string) iter.Seq2[string, error] {
	return func(func(string, error) bool) {}
}
func (n *nothing) Close() error {
	n.closed.Add(1)
	return nil
}

func opening(b Backend) BackendOpener { return func(Config) (Backend, error) { return b, nil } }

// A name stands for one store.
func TestRegisterRefuses(t *testing.T) {
	var r Registry
	if err := r.Register("Shelf", opening(&nothing{})); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"Shelf":                 "is registered already",
		"Cache":                 "this package has a store of that name",
		"Posix":                 "this package has a store of that name",
		"Ds3fs":                 "this package has a store of that name",
		"":                      "use a letter",
		"Cache|Shelf":           "use a letter",
		" Shelf":                "use a letter",
		"3fs":                   "use a letter",
		strings.Repeat("a", 41): "use a letter",
	} {
		if err := r.Register(name, opening(&nothing{})); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", name, err, want)
		}
	}
	if err := r.Register("Other", nil); err == nil || !strings.Contains(err.Error(), "no function") {
		t.Errorf("no function: %v", err)
	}
	// Another registry has names of its own.
	if err := new(Registry).Register("Shelf", opening(&nothing{})); err != nil {
		t.Error(err)
	}
}

func TestRegistryHasChains(t *testing.T) {
	var r Registry
	for _, name := range []string{"Shelf", "Attic"} {
		if err := r.Register(name, opening(&nothing{})); err != nil {
			t.Fatal(err)
		}
	}
	var want []string
	for _, name := range []string{"Attic", "Shelf"} {
		want = append(want, "Cache|"+name, name, "Cache|Segment|"+name, "Segment|"+name)
	}
	if got := r.Chains(); len(got) != len(Chains())+len(want) || slices.ContainsFunc(slices.Concat(want, Chains()), func(c string) bool { return !slices.Contains(got, c) }) {
		t.Errorf("%q", got)
	}
	for _, chain := range want {
		if names, err := r.parse(chain); err != nil || chainName(names) != chain {
			t.Errorf("%s: %v, %v", chain, names, err)
		}
	}
	for chain, want := range map[string]string{
		"Cache|Shelve": "did you mean Shelf?",
		"Shelf|Posix":  "a chain is one store, or Cache, Segment or both and one store",
		"Shelf|Cache":  "needs a store behind it",
	} {
		if _, err := r.Open(chain, Config{Namespace: namespace, Layout: testLayout}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", chain, err, want)
		}
	}
	if _, err := Open("Cache|Shelf", Config{Namespace: namespace, Layout: testLayout}); err == nil || !strings.Contains(err.Error(), "there is no store") {
		t.Errorf("a store that was registered elsewhere opens: %v", err)
	}
}

// A function that fails, panics or returns nothing is an error of Open.
func TestOpenersThatFail(t *testing.T) {
	for want, open := range map[string]BackendOpener{
		"Shelf: no such service":                     func(Config) (Backend, error) { return nil, errors.New("no such service") },
		"Shelf: kvstore: open the backend: panic: x": func(Config) (Backend, error) { panic("x") },
		"returned none, and no error":                func(Config) (Backend, error) { return nil, nil },
	} {
		var r Registry
		if err := r.Register("Shelf", open); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Open("Cache|Shelf", Config{Namespace: namespace, Layout: testLayout}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %q", err, want)
		}
	}
}

// A registered store has the chain's configuration, its errors, its statistics and its log,
// and is closed with the chain, or when the rest of the chain does not open.
func TestRegisteredStoreIsPartOfItsChain(t *testing.T) {
	var r Registry
	backend := &nothing{}
	var given Config
	if err := r.Register("Shelf", func(c Config) (Backend, error) {
		given = c
		return backend, nil
	}); err != nil {
		t.Fatal(err)
	}
	var log logged
	c := Config{
		Namespace: namespace, Layout: Layout{BlockBytes: 8192}, Logger: slog.New(ucmlog.NewHandler(&log, slog.LevelDebug)),
		Cache: &CacheOptions{CapacityBytes: 1 << 20},
	}
	s, err := r.Open("Cache|Shelf", c)
	if err != nil {
		t.Fatal(err)
	}
	if given.Namespace != namespace || given.Layout.ShardBytes != 8192 || given.Timeout != defaultTimeout || given.Logger == nil {
		t.Errorf("%+v", given)
	}
	task, err := s.Save(t.Context(), s.Layout().ByBlock(testKeys(3), buffers(testKeys(3))))
	if err != nil {
		t.Fatal(err)
	}
	if err := task.Wait(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Flush(t.Context()); err == nil {
		t.Error("three blocks did not arrive, and Flush says nothing")
	}
	if next := s.Stats().Next; next == nil || next.Store != "Shelf" || next.FailedSaves != 3 || next.Blocks != -1 {
		t.Errorf("%+v", next)
	}
	if err := s.Close(); err != nil || backend.closed.Load() != 1 {
		t.Errorf("closed %d times, %v", backend.closed.Load(), err)
	}
	tasks := tasksOf(t, log.take())
	if got := slices.Sorted(maps.Keys(tasks)); !slices.Equal(got, []string{"Cache DUMP", "Shelf Cache2Backend"}) {
		t.Errorf("%v", tasks)
	}
	c.Cache.CapacityBytes = 1
	if _, err := r.Open("Cache|Shelf", c); err == nil || backend.closed.Load() != 2 {
		t.Errorf("closed %d times, %v", backend.closed.Load(), err)
	}
}

// A file may name a registered store.
func TestRegistryReadsConfigurations(t *testing.T) {
	var r Registry
	if err := r.Register("Shelf", opening(&nothing{})); err != nil {
		t.Fatal(err)
	}
	src := []byte("store_pipeline: Cache|Shelf\nnamespace: {model: m, block_tokens: 16}\nblock_size: 4096\ncache_buffer_bytes: 1048576")
	ucm, notes, err := r.ReadConfig(src)
	if err != nil || len(notes) != 0 {
		t.Fatal(err, notes)
	}
	c, err := ucm.Config(ucm.StorePipeline)
	if err != nil {
		t.Fatal(err)
	}
	s, err := r.Open(ucm.StorePipeline, c)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, _, err := ReadConfig(src); err == nil || !strings.Contains(err.Error(), "line 1: store_pipeline is no chain") {
		t.Errorf("%v", err)
	}
}

// Registries are for any number of goroutines. One of several that register a name wins.
func TestRegistryForManyGoroutines(t *testing.T) {
	var r Registry
	var all sync.WaitGroup
	won := make(chan bool, 8)
	for range cap(won) {
		all.Go(func() {
			won <- r.Register("Shelf", opening(&nothing{})) == nil
			s, err := r.Open("Shelf", Config{Namespace: namespace, Layout: testLayout})
			if err != nil {
				t.Error(err)
				return
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
			_ = r.Chains()
		})
	}
	all.Wait()
	close(won)
	n := 0
	for w := range won {
		if w {
			n++
		}
	}
	if n != 1 {
		t.Errorf("%d goroutines have registered the name", n)
	}
}
