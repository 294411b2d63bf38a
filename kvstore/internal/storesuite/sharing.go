package storesuite

import (
	"errors"
	"math/rand/v2"
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var sharing = map[string]func(*world){
	"two writers of one block do not disturb each other": func(w *world) {
		const writers, rounds = 4, 12
		for round := range rounds {
			all := keys(round*5, 5)
			var together sync.WaitGroup
			for i := range writers {
				shards := w.shards(all...)
				if i%2 == 1 {
					shards = byLayer(shards)
				}
				together.Go(func() {
					task, err := w.store.Save(w.Context(), fill(shards))
					if err == nil {
						<-task.Done()
						err = task.Err()
					}
					if err != nil {
						w.Errorf("writer %d: %v", i, err)
					}
				})
			}
			w.within("Save", together.Wait)
			w.holds(all...)
		}
	},

	"a writer that stops in the middle does not disturb another": func(w *world) {
		for n := range 10 {
			w.stored(w.beginSave([]kv.Shard{w.shard(key(n), n%3)}))
			w.save(key(n))
			w.holds(key(n))
			w.stored(w.beginSave([]kv.Shard{w.shard(key(n), (n+1)%3)}))
			w.holds(key(n))
		}
	},

	"any number of goroutines may call every method": func(w *world) {
		const goroutines, rounds, universe = 8, 40, 60
		var together sync.WaitGroup
		for g := range goroutines {
			rng := rand.New(rand.NewPCG(7, uint64(g)))
			together.Go(func() {
				for range rounds {
					if !w.oneOf(rng, universe) {
						return
					}
				}
			})
		}
		w.within("all that", together.Wait)
		w.save(keys(0, universe)...)
		w.holds(keys(0, universe)...)
	},
}

// oneOf makes a random call for some of the blocks and reports whether it succeeded.
func (w *world) oneOf(rng *rand.Rand, universe int) bool {
	some := keys(rng.IntN(universe-6), 1+rng.IntN(6))
	shards := w.shards(some...)
	if rng.IntN(2) == 0 {
		byLayer(shards)
	}
	switch rng.IntN(8) {
	case 0, 1, 2:
		task, err := w.store.Save(w.Context(), fill(shards))
		if err == nil {
			err = task.Wait(w.Context())
		}
		if err != nil {
			w.Errorf("Save: %v", err)
			return false
		}
	case 3, 4, 5:
		task, err := w.store.Load(w.Context(), shards)
		if err != nil {
			w.Errorf("Load: %v", err)
			return false
		}
		for i, err := range task.All() {
			if err == nil && !w.right(shards[i]) {
				return false
			}
			if err != nil && !errors.Is(err, kv.ErrMiss) {
				w.Errorf("Load: %v", err)
				return false
			}
		}
	case 6:
		w.store.Prefetch(some)
		n, err := w.store.LookupPrefix(w.Context(), some)
		if err != nil || n > len(some) {
			w.Errorf("LookupPrefix: %d, %v", n, err)
			return false
		}
		_ = w.store.Stats()
	case 7:
		if err := w.store.Lookup(w.Context(), some, make([]bool, len(some))); err != nil {
			w.Errorf("Lookup: %v", err)
			return false
		}
		if err := w.store.Flush(w.Context()); err != nil {
			w.Errorf("Flush: %v", err)
			return false
		}
	}
	return true
}
