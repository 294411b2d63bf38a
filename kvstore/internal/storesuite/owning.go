package storesuite

import (
	"bytes"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var owning = map[string]func(*world){
	"nothing of a save is read once it is settled": func(w *world) {
		for n := range 40 {
			shards := w.shards(key(2*n), key(2*n+1))
			task := w.beginSave(shards)
			for i, err := range task.All() {
				if err != nil {
					w.Fatal(err)
				}
				mangle(shards[i : i+1])
			}
			if n%8 == 0 {
				w.flush()
			}
			w.holds(key(2*n), key(2*n+1))
		}
		w.flush()
		if w.subject.Durable {
			w.reopen()
			w.holds(keys(0, 80)...)
		}
	},

	"nothing of a load is written once it is settled": func(w *world) {
		w.save(keys(0, 20)...)
		var all []kv.Shard
		for range 10 {
			shards := w.shards(append(keys(0, 20), key(99))...)
			task := w.beginLoad(shards)
			w.wait(task)
			mangle(shards)
			all = append(all, shards...)
		}
		w.close()
		for i, s := range all {
			if bytes.Count(s.Buf, []byte{mangled}) != len(s.Buf) {
				w.Fatalf("shard %d changed after it was settled", i)
			}
		}
	},

	"each buffer belongs to the caller again when its shard is settled": func(w *world) {
		w.save(keys(0, 8)...)
		shards := byLayer(w.shards(keys(0, 8)...))
		task := w.beginLoad(shards)
		for i, err := range task.All() {
			if err == nil && !w.right(shards[i]) {
				w.Fatal(i)
			}
			mangle(shards[i : i+1]) // a data race if it is still written
		}
		w.holds(keys(0, 8)...)
	},

	"a save does not change its buffers": func(w *world) {
		shards := w.shards(key(0), key(1))
		w.stored(w.beginSave(shards))
		for _, s := range shards {
			w.right(s)
		}
	},

	"the slice of a batch belongs to the caller again when the batch is done": func(w *world) {
		for n := range 20 {
			shards := w.shards(key(n))
			w.stored(w.beginSave(shards))
			for i := range shards {
				shards[i] = kv.Shard{Key: key(1000), Index: -1}
			}
		}
		w.flush()
		w.holds(keys(0, 20)...)
		w.lacks(key(1000))
	},
}
