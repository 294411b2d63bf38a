package storesuite

import (
	"errors"
	"fmt"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var moving = map[string]func(*world){
	"saved blocks are loaded, block by block and layer by layer": func(w *world) {
		for _, l := range []kv.Layout{w.layout(1, 1), w.layout(1, 8192), w.layout(2, 4096), w.layout(3, 1000), w.layout(61, 512), w.layout(2, 1<<18)} {
			w.anew(l)
			all := keys(0, 6)
			w.stored(w.beginSave(w.shards(all[:3]...)))
			w.stored(w.beginSave(byLayer(w.shards(all[3:]...))))
			w.holds(all...)
			if w.subject.Discards {
				continue
			}
			shards := byLayer(w.shards(all...))
			for i, err := range w.results(w.beginLoad(shards)) {
				if err != nil || !w.right(shards[i]) {
					w.Fatal(fmt.Sprintf("%+v, shard %d:", l, i), err)
				}
			}
		}
	},

	"single shards of any block are loaded, in any order": func(w *world) {
		w.save(keys(0, 4)...)
		if w.subject.Discards {
			return
		}
		for _, shards := range [][]kv.Shard{
			{w.shard(key(2), 1)},
			{w.shard(key(3), 2), w.shard(key(0), 0), w.shard(key(3), 0), w.shard(key(1), 2)},
		} {
			for i, err := range w.results(w.beginLoad(shards)) {
				if err != nil || !w.right(shards[i]) {
					w.Fatal(i, err)
				}
			}
		}
	},

	"an absent block is a miss for its own shards alone": func(w *world) {
		w.save(key(0), key(2))
		shards := byLayer(w.shards(key(0), key(1), key(2), key(3)))
		for i, err := range w.results(w.beginLoad(shards)) {
			there := (shards[i].Key == key(0) || shards[i].Key == key(2)) && !w.subject.Discards
			switch {
			case there && (err != nil || !w.right(shards[i])):
				w.Fatalf("shard %d, which exists: %v", i, err)
			case !there && !errors.Is(err, kv.ErrMiss):
				w.Fatalf("shard %d, which does not exist: %v", i, err)
			}
		}
	},

	"a plain miss is not damage": func(w *world) {
		for _, err := range w.results(w.beginLoad(w.shards(key(0)))) {
			if errors.Is(err, kv.ErrCorrupt) {
				w.Fatal(err)
			}
		}
	},

	"saving a block that exists changes nothing and succeeds": func(w *world) {
		w.save(key(0), key(1))
		w.save(key(0), key(1))
		w.flush()
		w.save(key(1), key(2), key(0))
		other := w.shards(key(0))
		mangle(other)
		w.stored(w.begin("Save", w.store.Save, w.Context(), other))
		w.stored(w.begin("Save", w.store.Save, w.Context(), other[1:2]))
		w.holds(key(0), key(1), key(2))
	},

	"a shard may be in a batch twice": func(w *world) {
		w.stored(w.beginSave(append(w.shards(key(0)), w.shards(key(0))...)))
		w.holds(key(0))
		if w.subject.Discards {
			return
		}
		shards := append(w.shards(key(0)), w.shards(key(0))...)
		for i, err := range w.results(w.beginLoad(shards)) {
			if err != nil || !w.right(shards[i]) {
				w.Fatal(i, err)
			}
		}
	},

	"more batches than a queue holds can be begun one after the other": func(w *world) {
		var tasks []Task
		for i := range 120 {
			tasks = append(tasks, w.beginSave(w.shards(key(i))))
		}
		for _, t := range tasks {
			w.stored(t)
		}
		if w.subject.Discards {
			return
		}
		var wanted [][]kv.Shard
		tasks = nil
		for i := range 120 {
			wanted = append(wanted, w.shards(key(i)))
			tasks = append(tasks, w.beginLoad(wanted[i]))
		}
		for n, t := range tasks {
			for i, err := range w.results(t) {
				if err != nil || !w.right(wanted[n][i]) {
					w.Fatal(n, i, err)
				}
			}
		}
	},

	"saved blocks are loaded unchanged while other blocks come and go": func(w *world) {
		for round := range 8 {
			w.save(keys(round*10, 10)...)
			w.holds(keys(max(0, round-1)*10, 20)[:10]...)
		}
		w.holds(keys(0, 80)...)
	},

	"registered memory works like any other": func(w *world) {
		r, ok := as[kv.Registrar](w.store)
		if !ok {
			w.Skip("it registers no memory")
		}
		name, mem := w.sharedMemory(1 << 20)
		if err := r.Register(name, mem); err != nil {
			w.Fatal(err)
		}
		size := w.o.Layout.ShardBytes
		cut := func(k kv.Key, first int) (shards []kv.Shard) {
			for i := range w.o.Layout.Shards() {
				at := int64(first+i) * size
				shards = append(shards, kv.Shard{Key: k, Index: i, Buf: mem[at : at+size : at+size]})
			}
			return shards
		}
		w.stored(w.beginSave(cut(key(0), 0)))
		w.holds(key(0))
		if w.subject.Discards {
			return
		}
		inside, outside := cut(key(0), 7), w.shards(key(0))
		shards := append(inside, outside...)
		for i, err := range w.results(w.beginLoad(shards)) {
			if err != nil || !w.right(shards[i]) {
				w.Fatal(i, err)
			}
		}
	},
}
