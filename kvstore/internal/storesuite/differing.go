package storesuite

import (
	"bytes"
	"errors"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// differingWriters is how many save a block at the same time.
const differingWriters = 3

var differing = map[string]func(*world){
	"of writers that save a block with different bytes one wins whole": func(w *world) {
		const writers, rounds = differingWriters, 20
		w.anew(w.layout(6, 1024))
		for round := range rounds {
			all := keys(round*3, 3)
			var together sync.WaitGroup
			for v := range writers {
				shards := w.shards(all...)
				if (v+round)%2 == 1 {
					byLayer(shards)
				}
				vary(shards, v)
				together.Go(func() {
					task, err := w.store.Save(w.Context(), shards)
					if err == nil {
						err = task.Wait(w.Context())
					}
					if err != nil {
						w.Errorf("writer %d: %v", v, err)
					}
				})
			}
			w.within("Save", together.Wait)
			for _, k := range all {
				if w.variantOf(k, writers) < 0 && !w.subject.Discards {
					w.Fatalf("round %d: nobody has won block %s", round, k)
				}
			}
		}
	},

	"shards of different writers make no block": func(w *world) {
		const writers, rounds = 2, 40
		w.anew(w.layout(8, 1024))
		for round := range rounds {
			k := key(round)
			var variants [writers][]kv.Shard
			for v := range writers {
				variants[v] = vary(w.shards(k), v)
			}
			save := func(v, from, to int) {
				for i := from; i < to; i++ {
					task, err := w.store.Save(w.Context(), variants[v][i:i+1:i+1])
					if err == nil {
						err = task.Wait(w.Context())
					}
					if err != nil && !errors.Is(err, kv.ErrConflict) {
						w.Errorf("writer %d: %v", v, err)
					}
				}
			}
			if round%2 == 0 {
				half := len(variants[0]) / 2
				save(0, 0, half)
				save(1, 0, 2*half)
				save(0, half, 2*half)
			} else {
				var together sync.WaitGroup
				for v := range writers {
					together.Go(func() { save(v, 0, len(variants[v])) })
				}
				w.within("Save", together.Wait)
			}
			w.variantOf(k, writers)
			w.stored(w.begin("Save", w.store.Save, w.Context(), vary(w.shards(k), 0)))
			if w.variantOf(k, writers) < 0 && !w.subject.Discards {
				w.Fatalf("round %d: block %s cannot be saved any more", round, k)
			}
		}
	},

	"a load says of which version its shards are": func(w *world) {
		if !w.subject.Versions {
			w.Skip("the store need not")
		}
		w.anew(w.layout(3, 1024))
		var before uint64
		for round := range 20 {
			shards := vary(w.shards(key(1)), round)
			w.stored(w.begin("Save", w.store.Save, w.Context(), shards))
			if err := w.store.Flush(w.Context()); err != nil {
				w.Fatal(err)
			}
			whole := w.beginLoad(w.shards(key(1))).(*kv.Task)
			w.stored(whole)
			part := w.beginLoad(w.shards(key(1))[1:2]).(*kv.Task)
			w.stored(part)
			now := whole.Version(0)
			if now == 0 || now == before || whole.Version(1) != now || whole.Version(2) != now || part.Version(0) != now {
				w.Fatalf("round %d: versions %x, %x, %x, and %x of a part; the last block had %x",
					round, now, whole.Version(1), whole.Version(2), part.Version(0), before)
			}
			before = now
			w.delete(key(1))
		}
	},

	"a block that was begun by another writer is saved whole": func(w *world) {
		for n := range 10 {
			first, second := vary(w.shards(key(n)), 1), vary(w.shards(key(n)), 0)
			w.stored(w.begin("Save", w.store.Save, w.Context(), first[n%3:n%3+1:n%3+1]))
			w.stored(w.begin("Save", w.store.Save, w.Context(), second))
			for i := range first {
				w.stored(w.begin("Save", w.store.Save, w.Context(), first[i:i+1:i+1]))
			}
			if v := w.variantOf(key(n), 2); v != 0 && !w.subject.Discards {
				w.Fatalf("block %d is that of writer %d", n, v)
			}
		}
	},
}

// vary fills shards with what a writer has computed for them.
func vary(shards []kv.Shard, writer int) []kv.Shard {
	fill(shards)
	for _, s := range shards {
		for i := range s.Buf {
			s.Buf[i] ^= byte(writer)
		}
	}
	return shards
}

// variantOf returns the writer whose block is stored, or -1 where none is. A block of
// several writers' shards fails the test.
func (w *world) variantOf(k kv.Key, writers int) int {
	w.Helper()
	shards := w.shards(k)
	for i, err := range w.results(w.beginLoad(shards)) {
		if errors.Is(err, kv.ErrMiss) {
			return -1
		}
		if err != nil {
			w.Fatalf("loading shard %d of block %s: %v", i, k, err)
		}
	}
	var of []int
	for _, s := range shards {
		want := w.shard(k, s.Index)
		for v := range writers {
			if bytes.Equal(s.Buf, vary([]kv.Shard{want}, v)[0].Buf) {
				of = append(of, v)
			}
		}
	}
	for _, v := range of {
		if v != of[0] || len(of) != len(shards) {
			w.Fatalf("the shards of block %s are of writers %v", k, of)
		}
	}
	return of[0]
}
