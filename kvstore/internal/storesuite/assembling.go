package storesuite

import (
	"errors"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var assembling = map[string]func(*world){
	"a block exists when its last shard is settled, and not before": func(w *world) {
		for i := range w.o.Layout.Shards() {
			w.lacks(key(0))
			w.prefix(0, key(0))
			w.stored(w.beginSave([]kv.Shard{w.shard(key(0), i)}))
		}
		w.holds(key(0))
	},

	"shards come in several batches and in any order": func(w *world) {
		w.anew(w.layout(5, 1024))
		all := keys(0, 4)
		for n, batch := range [][]int{{4}, {0, 2}, {3}, {1}} {
			var shards []kv.Shard
			for _, i := range batch {
				for _, k := range all {
					shards = append(shards, w.shard(k, i))
				}
			}
			w.lacks(all...)
			w.stored(w.beginSave(shards))
			if n == 0 {
				w.save(key(9))
			}
		}
		w.holds(all...)
		w.holds(key(9))
	},

	"concurrent batches of one block complete it": func(w *world) {
		w.anew(w.layout(8, 1024))
		var tasks []Task
		for i := range 8 {
			tasks = append(tasks, w.beginSave([]kv.Shard{w.shard(key(0), 7-i), w.shard(key(1), i)}))
		}
		for _, t := range tasks {
			w.stored(t)
		}
		w.holds(key(0), key(1))
	},

	"a block whose shards stop coming does not exist and can be saved": func(w *world) {
		w.stored(w.beginSave([]kv.Shard{w.shard(key(0), 0), w.shard(key(1), 2)}))
		w.save(key(2))
		w.lacks(key(0), key(1))
		w.save(key(0))
		w.holds(key(0), key(2))
		w.lacks(key(1))
	},

	"a shard of an unfinished block can be saved again": func(w *world) {
		w.stored(w.beginSave([]kv.Shard{w.shard(key(0), 1)}))
		w.stored(w.beginSave([]kv.Shard{w.shard(key(0), 1)}))
		w.stored(w.beginSave([]kv.Shard{w.shard(key(0), 0)}))
		w.lacks(key(0))
		w.stored(w.beginSave([]kv.Shard{w.shard(key(0), 2)}))
		w.holds(key(0))
	},

	"unfinished blocks do not exist after Close": func(w *world) {
		w.save(key(1))
		w.stored(w.beginSave([]kv.Shard{w.shard(key(0), 0), w.shard(key(0), 2)}))
		w.flush()
		w.reopen()
		w.lacks(key(0))
		w.save(key(0))
		w.holds(key(0))
	},

	"a load never sees part of a block": func(w *world) {
		w.anew(w.layout(4, 2048))
		for n := range 30 {
			save := w.beginSave(byLayer(w.shards(key(n))))
			shards := w.shards(key(n))
			for i, err := range w.results(w.beginLoad(shards)) {
				if err == nil && !w.right(shards[i]) || err != nil && !errors.Is(err, kv.ErrMiss) {
					w.Fatal(n, i, err)
				}
			}
			w.stored(save)
			w.holds(key(n))
		}
	},
}
