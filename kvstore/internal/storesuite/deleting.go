package storesuite

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var deleting = map[string]func(*world){
	"deleted blocks do not exist, and the others do": func(w *world) {
		w.save(keys(0, 10)...)
		w.delete(key(1), key(3), key(9))
		w.lacks(key(1), key(3), key(9))
		w.remain(key(0), key(2), key(4), key(5), key(6), key(7), key(8))
		if !w.subject.Together {
			w.prefix(1, keys(0, 10)...)
		}
	},

	"deleted blocks do not come back when the store is opened again": func(w *world) {
		w.durable()
		w.save(keys(0, 6)...)
		w.flush()
		w.delete(key(0), key(5))
		w.flush()
		w.reopen()
		w.lacks(key(0), key(5))
		w.remain(keys(1, 4)...)
	},

	"blocks deleted before a flush do not come back": func(w *world) {
		w.save(keys(0, 6)...)
		w.delete(key(0), key(5))
		w.flush()
		w.lacks(key(0), key(5))
		w.remain(keys(1, 4)...)
		if w.subject.Durable {
			w.reopen()
			w.lacks(key(0), key(5))
			w.remain(keys(1, 4)...)
		}
	},

	"deleted blocks can be saved again": func(w *world) {
		for range 5 {
			w.save(keys(0, 4)...)
			w.holds(keys(0, 4)...)
			w.delete(keys(0, 4)...)
			w.lacks(keys(0, 4)...)
		}
		w.save(keys(0, 4)...)
		w.flush()
		w.holds(keys(0, 4)...)
		if w.subject.Durable {
			w.reopen()
			w.holds(keys(0, 4)...)
		}
	},

	"deleting absent keys, no keys, or a key twice succeeds": func(w *world) {
		w.save(keys(0, 3)...)
		w.delete()
		w.delete(key(7))
		w.delete(key(0), key(8), key(0))
		w.delete(key(0))
		w.lacks(key(0), key(7), key(8))
		w.remain(key(1), key(2))
	},

	"more keys than any batch of an engine are deleted in one call": func(w *world) {
		w.save(keys(0, 100)...)
		w.delete(keys(20, 3000)...)
		w.remain(keys(0, 20)...)
		w.lacks(keys(20, 80)...)
	},

	"a load of a block that is being deleted returns the block or a miss": func(w *world) {
		for n := range 20 {
			all := keys(n*5, 5)
			w.save(all...)
			shards := byLayer(w.shards(all...))
			task := w.beginLoad(shards)
			var together sync.WaitGroup
			together.Go(func() {
				if err := w.store.Delete(w.Context(), all); err != nil {
					w.Errorf("Delete: %v", err)
				}
			})
			for i, err := range w.results(task) {
				if err == nil {
					w.right(shards[i])
				} else if !errors.Is(err, kv.ErrMiss) || errors.Is(err, kv.ErrCorrupt) {
					w.Errorf("shard %d of a block that is being deleted: %v", i, err)
				}
			}
			w.within("Delete", together.Wait)
			w.lacks(all...)
		}
		if n := corrupt(w.store.Stats()); n != 0 {
			w.Errorf("%d deleted blocks are counted as damaged", n)
		}
	},

	"a save of a block that is being deleted leaves the whole block or nothing": func(w *world) {
		for n := range 20 {
			all := keys(n*5, 5)
			task := w.beginSave(byLayer(w.shards(all...)))
			var together sync.WaitGroup
			together.Go(func() {
				if err := w.store.Delete(w.Context(), all); err != nil {
					w.Errorf("Delete: %v", err)
				}
			})
			w.stored(task)
			w.within("Delete", together.Wait)
			for i, there := range w.lookup(all...) {
				if there {
					w.holds(all[i])
				}
			}
			w.delete(all...)
			w.lacks(all...)
		}
	},

	"Delete returns ErrClosed after Close, and may return the error of its context": func(w *world) {
		w.save(keys(0, 2)...)
		ended, end := context.WithCancel(w.Context())
		end()
		switch err := w.store.Delete(ended, keys(0, 1)); {
		case err == nil:
			w.lacks(key(0))
		case !errors.Is(err, context.Canceled):
			w.Errorf("Delete: %v", err)
		}
		w.holds(key(1))
		w.close()
		if err := w.store.Delete(w.Context(), keys(0, 1)); !errors.Is(err, kv.ErrClosed) {
			w.Errorf("Delete after Close: %v", err)
		}
	},
}

var listing = map[string]func(*world){
	"Keys yields every block once": func(w *world) {
		w.lists()
		w.save(keys(0, 100)...)
		w.lists(keys(0, 100)...)
		w.flush()
		w.lists(keys(0, 100)...)
		w.save(keys(0, 10)...)
		w.save(kv.Key{}, key(200))
		w.lists(append(keys(0, 100), kv.Key{}, key(200))...)
		if w.subject.Durable {
			w.flush()
			w.reopen()
			w.lists(append(keys(0, 100), kv.Key{}, key(200))...)
		}
	},

	"Keys yields no unfinished block": func(w *world) {
		w.save(key(1))
		w.stored(w.beginSave([]kv.Shard{w.shard(key(0), 0), w.shard(key(2), 2)}))
		w.lists(key(1))
		w.stored(w.beginSave([]kv.Shard{w.shard(key(0), 1), w.shard(key(0), 2)}))
		w.lists(key(0), key(1))
	},

	"Keys yields no deleted block": func(w *world) {
		w.save(keys(0, 20)...)
		w.delete(keys(5, 10)...)
		remain := slices.DeleteFunc(append(keys(0, 5), keys(15, 5)...), func(k kv.Key) bool {
			return w.subject.Together && !w.lookup(k)[0]
		})
		w.lists(remain...)
		w.flush()
		w.lists(remain...)
	},

	"Keys yields no block of another namespace": func(w *world) {
		w.durable()
		if w.subject.OneNamespace {
			w.Skip("it does not open a directory of another namespace")
		}
		w.save(keys(0, 5)...)
		w.flush()
		w.close()
		mine := w.o.Namespace
		w.o.Namespace = kv.Fingerprint{9}
		w.open()
		if got := w.listed(); len(got) != 0 && !w.subject.Unverified {
			w.Fatalf("%d blocks of another namespace", len(got))
		}
		w.close()
		w.o.Namespace = mine
		w.open()
		w.lists(keys(0, 5)...)
	},

	"a caller may leave Keys early and call the store inside the loop": func(w *world) {
		w.save(keys(0, 50)...)
		n := 0
		w.within("Keys", func() {
			for _, _ = range w.store.Keys(w.Context()) {
				if n++; n == 3 {
					break
				}
			}
			for k, err := range w.store.Keys(w.Context()) {
				if err != nil {
					w.Error(err)
					return
				}
				if err := w.store.Delete(w.Context(), []kv.Key{k}); err != nil {
					w.Error(err)
					return
				}
				if err := w.store.Lookup(w.Context(), []kv.Key{k}, make([]bool, 1)); err != nil {
					w.Error(err)
					return
				}
			}
		})
		w.lists()
		w.lacks(keys(0, 50)...)
	},

	"Keys yields the blocks that stay while others come and go": func(w *world) {
		stay := keys(0, 40)
		w.save(stay...)
		quit := make(chan struct{})
		var together sync.WaitGroup
		together.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-quit:
					return
				default:
				}
				some := keys(100+n%50, 1)
				task, err := w.store.Save(w.Context(), fill(w.shards(some...)))
				if err == nil {
					<-task.Done()
					err = task.Err()
				}
				if err == nil && n%2 == 1 {
					err = w.store.Delete(w.Context(), some)
				}
				if err != nil {
					w.Error(err)
					return
				}
			}
		})
		for range 10 {
			got := w.listed()
			for _, k := range stay {
				if !w.subject.Discards && !got[k] {
					w.Errorf("block %s, which stays, is not listed", k)
				}
			}
		}
		close(quit)
		w.within("saving", together.Wait)
	},

	"Keys yields ErrClosed once after Close": func(w *world) {
		w.save(key(0))
		w.close()
		w.endsWith(w.Context(), kv.ErrClosed)
	},

	"Keys yields the error of its context once": func(w *world) {
		w.save(keys(0, 10)...)
		ended, end := context.WithCancel(w.Context())
		end()
		w.endsWith(ended, context.Canceled)
	},
}

// endsWith checks that a listing yields one error, the last of all, with a zero key.
func (w *world) endsWith(ctx context.Context, want error) {
	w.Helper()
	var last error
	w.within("Keys", func() {
		for k, err := range w.store.Keys(ctx) {
			if last != nil {
				w.Errorf("something comes after the error: %s, %v", k, err)
			}
			if err != nil && k != (kv.Key{}) {
				w.Errorf("the error comes with key %s", k)
			}
			last = err
		}
	})
	if !errors.Is(last, want) && (want == kv.ErrClosed || !w.subject.Discards) { // a store with nothing to list may just end
		w.Errorf("Keys ends with %v; want %v", last, want)
	}
}

// delete deletes blocks.
func (w *world) delete(keys ...kv.Key) {
	w.Helper()
	var err error
	w.within("Delete", func() { err = w.store.Delete(w.Context(), keys) })
	if err != nil {
		w.Fatalf("Delete of %d keys: %v", len(keys), err)
	}
}

// remain checks that blocks are there still, of which others that were saved with them were
// deleted.
func (w *world) remain(keys ...kv.Key) {
	w.Helper()
	if !w.subject.Together {
		w.holds(keys...)
	}
}

// listed returns what Keys yields, none of it twice.
func (w *world) listed() map[kv.Key]bool {
	w.Helper()
	got := map[kv.Key]bool{}
	w.within("Keys", func() {
		for k, err := range w.store.Keys(w.Context()) {
			if err != nil {
				w.Errorf("Keys: %v", err)
			} else if got[k] {
				w.Errorf("Keys yields block %s twice", k)
			}
			got[k] = true
		}
	})
	if w.Failed() {
		w.FailNow()
	}
	return got
}

// lists checks that Keys yields these blocks and no others.
func (w *world) lists(want ...kv.Key) {
	w.Helper()
	if w.subject.Discards {
		want = nil
	}
	got := w.listed()
	for _, k := range want {
		if !got[k] {
			w.Fatalf("Keys does not yield block %s, one of %d that exist; it yields %d blocks", k, len(want), len(got))
		}
		delete(got, k)
	}
	if len(got) > 0 {
		w.Fatalf("Keys yields %d blocks that do not exist, such as %s", len(got), slices.Collect(maps.Keys(got))[0])
	}
}
