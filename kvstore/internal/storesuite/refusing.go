package storesuite

import (
	"bytes"
	"errors"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var refusing = map[string]func(*world){
	"a batch of no shards is refused": func(w *world) {
		w.refused("empty", nil, -1)
	},

	"a batch with a shard of a wrong length is refused": func(w *world) {
		for name, buf := range map[string][]byte{
			"short": w.buffer(w.o.Layout.ShardBytes - 1), "long": w.buffer(w.o.Layout.ShardBytes + 1), "none": nil,
			"a whole block": w.buffer(w.o.Layout.BlockBytes),
		} {
			shards := w.shards(key(0), key(1))
			shards[4].Buf = buf
			w.refused(name, shards, 4)
		}
	},

	"a found of a wrong length is refused and not written to": func(w *world) {
		w.save(keys(0, 3)...)
		asked := keys(0, 3)
		for _, n := range []int{0, 1, 2, 4, 300} {
			found, before := make([]bool, n), w.store.Stats().LookedUp
			for i := range found {
				found[i] = i%2 == 1
			}
			var err error
			w.within("Lookup", func() { err = w.store.Lookup(w.Context(), asked, found) })
			var mistake *kv.BatchError
			if !errors.As(err, &mistake) || mistake.Shard != -1 {
				w.Fatalf("Lookup of %d keys into %d places: %v; want a BatchError about the whole batch", len(asked), n, err)
			}
			for i, there := range found {
				if there != (i%2 == 1) {
					w.Fatalf("Lookup of %d keys into %d places wrote place %d", len(asked), n, i)
				}
			}
			if w.store.Stats().LookedUp != before {
				w.Fatalf("Lookup of %d keys into %d places is counted", len(asked), n)
			}
		}
		w.within("Lookup", func() {
			if err := w.store.Lookup(w.Context(), nil, make([]bool, 1)); err == nil {
				w.Error("Lookup of no keys into one place succeeds")
			}
		})
		w.holds(keys(0, 3)...)
	},

	"a batch with an invalid index is refused": func(w *world) {
		for name, index := range map[string]int{"negative": -1, "one too many": w.o.Layout.Shards(), "huge": 1 << 40} {
			shards := w.shards(key(0), key(1))
			shards[5].Index = index
			w.refused(name, shards, 5)
		}
	},
}

// refused checks that Load and Save refuse a batch because of its i-th shard, and that
// nothing of it was begun.
func (w *world) refused(name string, shards []kv.Shard, i int) {
	w.Helper()
	for what, do := range map[string]move{"Save": w.store.Save, "Load": w.store.Load} {
		mangle(shards)
		var t Task
		var err error
		w.within(what, func() { t, err = do(w.Context(), shards) })
		var mistake *kv.BatchError
		if !errors.As(err, &mistake) || t != nil {
			w.Fatalf("%s, %s: task %v, error %v; want no task and a BatchError", name, what, t != nil, err)
		}
		if mistake.Shard != i || i >= 0 && mistake.Key != shards[i].Key {
			w.Fatalf("%s, %s: %v; want one about shard %d", name, what, err, i)
		}
	}
	w.lacks(key(0), key(1))
	for n, s := range shards {
		if bytes.Count(s.Buf, []byte{mangled}) != len(s.Buf) {
			w.Fatalf("%s: shard %d was loaded although the batch was refused", name, n)
		}
	}
	s := w.store.Stats()
	if s.SavedShards != 0 || s.LoadedShards != 0 {
		w.Fatalf("%s: %d shards saved, %d loaded", name, s.SavedShards, s.LoadedShards)
	}
}
