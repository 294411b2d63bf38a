package storesuite

import (
	"context"
	"errors"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var watching = map[string]func(*world){
	"every shard is settled once, and All yields each": func(w *world) {
		for what, begin := range map[string]func([]kv.Shard) Task{"Save": w.beginSave, "Load": w.beginLoad} {
			shards := w.shards(append(keys(0, 10), key(0))...)
			task := begin(shards)
			if task.Len() != len(shards) {
				w.Fatalf("%s: a batch of %d shards has %d", what, len(shards), task.Len())
			}
			seen := make([]int, len(shards))
			w.within("All", func() {
				for i, err := range task.All() {
					seen[i]++
					if again, settled := task.Result(i); !settled || again != err {
						w.Errorf("%s: shard %d: All yields %v, Result returns %v (%t)", what, i, err, again, settled)
					}
				}
			})
			for i, n := range seen {
				if n != 1 {
					w.Fatalf("%s: shard %d came %d times", what, i, n)
				}
			}
			w.wait(task)
		}
	},

	"a layer has landed when all its shards are settled": func(w *world) {
		w.anew(w.layout(6, 2048))
		w.save(keys(0, 12)...)
		shards := byLayer(w.shards(keys(0, 12)...))
		task := w.beginLoad(shards)
		for layer := range 6 {
			w.until("a layer has landed", task.Landed(layer))
			for i, s := range shards {
				if s.Index != layer {
					continue
				}
				err, settled := task.Result(i)
				if !settled {
					w.Fatalf("layer %d has landed without shard %d", layer, i)
				}
				if !w.subject.Discards && (err != nil || !w.right(s)) {
					w.Fatal(layer, i, err)
				}
			}
		}
		w.wait(task)
	},

	"a layer may be used when LandedErr is nil, and not before": func(w *world) {
		w.anew(w.layout(4, 2048))
		w.save(keys(0, 6)...)
		w.stored(w.beginSave([]kv.Shard{w.shard(key(9), 1)}))
		shards := byLayer(w.shards(keys(0, 6)...))
		shards = append(shards, w.shard(key(9), 2)) // of a block that is not whole
		task := w.beginLoad(shards)
		for layer := range 4 {
			if task.LandedErr(layer) == nil {
				w.until("a layer whose LandedErr is nil has landed", task.Landed(layer))
			}
			w.until("a layer has landed", task.Landed(layer))
			switch err := task.LandedErr(layer); {
			case layer == 2 || w.subject.Discards:
				if !errors.Is(err, kv.ErrMiss) {
					w.Errorf("LandedErr of layer %d, which has a shard that is missed: %v", layer, err)
				}
			case err != nil:
				w.Errorf("LandedErr of layer %d: %v", layer, err)
			}
		}
		w.wait(task)
	},

	"Err is the error of the shard that failed first": func(w *world) {
		w.save(key(0))
		task := w.beginLoad(w.shards(key(0), key(1)))
		w.wait(task)
		if err := task.Err(); !errors.Is(err, kv.ErrMiss) {
			w.Fatal(err)
		}
		w.within("Wait", func() {
			if err := task.Wait(w.Context()); !errors.Is(err, kv.ErrMiss) {
				w.Error(err)
			}
		})
	},

	"Wait cancels the batch when its context ends and leaves no buffer in use": func(w *world) {
		w.save(keys(0, 40)...)
		ended, end := context.WithCancel(w.Context())
		end()
		for range 10 {
			shards := w.shards(keys(0, 40)...)
			task := w.beginLoad(shards)
			w.within("Wait", func() { _ = task.Wait(ended) })
			for i, err := range w.results(task) {
				if err == nil {
					w.right(shards[i])
				}
			}
			mangle(shards) // a data race if one is in use
		}
	},
}
