package storesuite

import (
	"errors"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var closing = map[string]func(*world){
	"Close may be called twice, also concurrently": func(w *world) {
		w.save(key(0))
		var together sync.WaitGroup
		for range 4 {
			together.Go(func() {
				if err := w.store.Close(); err != nil {
					w.Errorf("Close: %v", err)
				}
			})
		}
		w.within("Close", together.Wait)
		w.close()
	},

	"after Close every call returns ErrClosed": func(w *world) {
		w.save(key(0))
		w.close()
		w.within("a call", func() {
			_, prefix := w.store.LookupPrefix(w.Context(), keys(0, 2))
			_, load := w.store.Load(w.Context(), w.shards(key(0)))
			_, save := w.store.Save(w.Context(), fill(w.shards(key(0))))
			for name, err := range map[string]error{
				"Lookup": w.store.Lookup(w.Context(), keys(0, 2), make([]bool, 2)), "LookupPrefix": prefix,
				"Load": load, "Save": save, "Flush": w.store.Flush(w.Context()),
			} {
				if !errors.Is(err, kv.ErrClosed) {
					w.Errorf("%s: %v", name, err)
				}
			}
			w.store.Prefetch(keys(0, 2))
			if l := w.store.Layout(); l != w.o.Layout {
				w.Errorf("Layout: %+v", l)
			}
			if s := w.store.Stats(); s.SavedShards != int64(w.o.Layout.Shards()) {
				w.Errorf("Stats: %d shards were saved", s.SavedShards)
			}
		})
	},

	"Close settles everything that is under way": func(w *world) {
		rounds := 6
		if testing.Short() {
			rounds = 2
		}
		for round := range rounds {
			if round > 0 {
				w.anew(w.o.Layout)
			}
			w.save(keys(0, 20)...)
			w.closeUnderLoad()
		}
	},

	"Close leaves no goroutine and no open file": func(w *world) {
		w.reopen()
		w.close() // what the first store leaves in the process for good is counted
		goroutines, files := runtime.NumGoroutine(), openFiles(w)
		for range 3 {
			w.open()
			w.save(keys(0, 10)...)
			w.store.Prefetch(keys(0, 30))
			w.flush()
			w.holds(keys(0, 10)...)
			w.wait(w.beginLoad(w.shards(keys(50, 10)...)))
			w.closeUnderLoad()
		}
		patience := time.Now().Add(w.subject.Patience)
		for runtime.NumGoroutine() > goroutines || openFiles(w) > files {
			if time.Now().After(patience) {
				stacks := make([]byte, 1<<20)
				w.Fatalf("%d goroutines and %d files, before %d and %d\n%s", runtime.NumGoroutine(), openFiles(w),
					goroutines, files, stacks[:runtime.Stack(stacks, true)])
			}
			time.Sleep(time.Millisecond)
		}
	},
}

// closeUnderLoad closes the store while goroutines load, save and look up. Everything
// that they began is settled when Close returns, loaded shards are right, and later
// calls return ErrClosed.
func (w *world) closeUnderLoad() {
	w.Helper()
	const goroutines = 4
	var together, warm sync.WaitGroup
	var mu sync.Mutex
	var begun []Task
	warm.Add(goroutines + 1)
	together.Go(func() { w.queryUntilClosed(warm.Done) })
	for g := range goroutines {
		together.Go(func() {
			for n := 0; ; n++ {
				if n == 5 {
					warm.Done()
				}
				shards := w.shards(key(n%20), key(200+g))
				do := w.store.Load
				if g%2 == 1 {
					do = w.store.Save
					fill(shards)
				}
				task, err := do(w.Context(), shards)
				if err != nil {
					if !errors.Is(err, kv.ErrClosed) {
						w.Errorf("a call during Close: %v", err)
					}
					if n < 5 {
						warm.Done()
					}
					return
				}
				mu.Lock()
				begun = append(begun, task)
				mu.Unlock()
			}
		})
	}
	w.within("batches are begun", warm.Wait)
	w.close()
	w.within("calls", together.Wait)
	for _, t := range begun {
		select {
		case <-t.Done():
		default:
			w.Fatal("a batch is under way after Close")
		}
		for i, err := range w.results(t) {
			switch s := t.Shard(i); {
			case err == nil:
				w.right(s)
			case errors.Is(err, kv.ErrMiss), errors.Is(err, kv.ErrClosed), errors.Is(err, kv.ErrFull):
			default:
				w.Fatalf("shard %d at Close: %v", i, err)
			}
		}
	}
}

// queryUntilClosed calls the methods that move no data until they return ErrClosed, and
// calls begun after the first round.
func (w *world) queryUntilClosed(begun func()) {
	begin := sync.OnceFunc(begun)
	defer begin()
	for closed := false; !closed; begin() {
		_, prefix := w.store.LookupPrefix(w.Context(), keys(0, 30))
		w.store.Prefetch(keys(0, 30))
		w.store.Stats()
		for name, err := range map[string]error{
			"Lookup": w.store.Lookup(w.Context(), keys(0, 30), make([]bool, 30)), "LookupPrefix": prefix,
			"Flush": w.store.Flush(w.Context()),
		} {
			if err != nil && !errors.Is(err, kv.ErrClosed) {
				w.Errorf("%s during Close: %v", name, err)
			}
			closed = closed || err != nil
		}
	}
}

func openFiles(w *world) int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		w.Fatal(err)
	}
	return len(all)
}
