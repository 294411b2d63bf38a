package storesuite

import (
	"errors"
	"fmt"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

var damaging = map[string]func(*world){
	"a damaged block is never returned and can be saved again": func(w *world) {
		if w.subject.Damage == nil || !w.subject.Verified {
			w.Skip("its blocks cannot be damaged, or it has no checksums")
		}
		missed := 0
		for seed := range w.subject.Seeds {
			missed += w.damaged(uint64(seed))
			if w.Failed() {
				w.FailNow()
			}
		}
		if missed == 0 {
			w.Fatalf("%d seeds, and no block was ever missed: does Damage do anything?", w.subject.Seeds)
		}
	},
}

// damaged saves blocks, damages them by the seed and loads all. It returns how many were
// missed.
func (w *world) damaged(seed uint64) (missed int) {
	w.Helper()
	all := keys(0, 12)
	w.anew(w.layout(1+int(seed%4), 2048))
	w.save(all...)
	w.flush()
	w.close()
	w.subject.Damage(w, w.dir, seed)
	w.open()
	shards := w.shards(all...)
	found := w.lookup(all...)
	lost := map[kv.Key]bool{}
	for i, err := range w.results(w.beginLoad(shards)) {
		switch {
		case err == nil:
			if !w.right(shards[i]) {
				w.Fatalf("seed %d: damage was returned as data", seed)
			}
		case errors.Is(err, kv.ErrMiss):
			lost[shards[i].Key] = true
			if errors.Is(err, kv.ErrCorrupt) && corrupt(w.store.Stats()) == 0 {
				w.Fatalf("seed %d: %v, and the damage is not counted", seed, err)
			}
		default:
			w.Fatal(fmt.Sprintf("seed %d, shard %d:", seed, i), err)
		}
	}
	left := w.lookup(all...)
	for i, k := range all {
		if found[i] && lost[k] && corrupt(w.store.Stats()) == 0 {
			w.Fatalf("seed %d: block %s was found and missed, and no damage is counted", seed, k)
		}
		if lost[k] || w.subject.Together && !left[i] {
			w.save(k)
		}
	}
	w.holds(all...)
	w.flush()
	w.reopen()
	w.holds(all...)
	return len(lost)
}
