package storesuite

import (
	"context"
	"errors"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var cancelling = map[string]func(*world){
	"nothing of a batch is begun when its context has ended": func(w *world) {
		ended, end := context.WithCancel(w.Context())
		end()
		w.save(key(1))
		w.notBegun("Save", w.store.Save, ended, fill(w.shards(key(0))))
		w.lacks(key(0))
		w.notBegun("Load", w.store.Load, ended, w.shards(key(1)))
		w.save(key(0))
		w.holds(key(0), key(1))
	},

	"a context that has ended causes no error but its own": func(w *world) {
		ended, end := context.WithCancel(w.Context())
		end()
		w.save(key(0))
		w.flush()
		w.within("Lookup", func() {
			found := make([]bool, 1)
			if err := w.store.Lookup(ended, []kv.Key{key(0)}, found); err != nil && !errors.Is(err, context.Canceled) {
				w.Errorf("Lookup: %v", err)
			}
			if _, err := w.store.LookupPrefix(ended, []kv.Key{key(0)}); err != nil && !errors.Is(err, context.Canceled) {
				w.Errorf("LookupPrefix: %v", err)
			}
			if err := w.store.Flush(ended); err != nil && !errors.Is(err, context.Canceled) {
				w.Errorf("Flush: %v", err)
			}
		})
		w.holds(key(0))
	},

	"the error of a deadline is returned as it is": func(w *world) {
		late, end := context.WithTimeout(w.Context(), 0)
		defer end()
		var task Task
		var err error
		w.within("Save", func() { task, err = w.store.Save(late, fill(w.shards(key(0)))) })
		if err == nil {
			w.wait(task)
			err = task.Err()
		}
		if !errors.Is(err, context.DeadlineExceeded) {
			w.Fatal(err)
		}
	},

	"after a cancelled save exactly those blocks exist whose shards all succeeded": func(w *world) {
		cancelled := 0
		for round := range 12 {
			all := keys(round*20, 20)
			ctx, cancel := context.WithCancel(w.Context())
			shards := w.shards(all...)
			task := w.begin("Save", w.store.Save, ctx, fill(shards))
			switch round % 3 {
			case 0:
				cancel()
			case 1:
				task.Cancel()
			case 2:
				w.within("a shard is settled", func() {
					for _, _ = range task.All() {
						break
					}
				})
				task.Cancel()
			}
			failed := map[kv.Key]bool{}
			for i, err := range w.results(task) {
				if err != nil && !errors.Is(err, context.Canceled) {
					w.Fatalf("shard %d: %v", i, err)
				}
				if err != nil {
					failed[shards[i].Key] = true
				}
			}
			cancel()
			cancelled += len(failed)
			for _, k := range all {
				if failed[k] {
					w.lacks(k)
				} else {
					w.holds(k)
				}
			}
			w.save(all...)
			w.holds(all...)
		}
		w.Logf("%d blocks were cancelled", cancelled)
	},

	"every shard of a cancelled load has its own error or the context's": func(w *world) {
		w.save(keys(0, 60)...)
		for round := range 10 {
			ctx, cancel := context.WithCancel(w.Context())
			shards := byLayer(w.shards(keys(0, 60)...))
			task := w.begin("Load", w.store.Load, ctx, shards)
			if round%2 == 0 {
				task.Cancel()
			} else {
				cancel()
			}
			for i, err := range w.results(task) {
				switch {
				case err == nil:
					w.right(shards[i])
				case errors.Is(err, context.Canceled):
				case w.subject.Discards && errors.Is(err, kv.ErrMiss):
				default:
					w.Fatalf("shard %d: %v", i, err)
				}
			}
			cancel()
		}
		w.holds(keys(0, 60)...)
	},
}

// notBegun checks that no shard of a batch is begun and that each has the context's
// error.
func (w *world) notBegun(what string, do move, ctx context.Context, shards []kv.Shard) {
	w.Helper()
	var t Task
	var err error
	w.within(what, func() { t, err = do(ctx, shards) })
	if err != nil {
		if !errors.Is(err, context.Canceled) || t != nil {
			w.Fatalf("%s: %v, and a task: %t", what, err, t != nil)
		}
		return
	}
	for i, err := range w.results(t) {
		if !errors.Is(err, context.Canceled) {
			w.Fatalf("%s: shard %d: %v", what, i, err)
		}
	}
}
