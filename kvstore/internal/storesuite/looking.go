package storesuite

import "github.com/kv3fs/kv3fs/kvstore/internal/kv"

var looking = map[string]func(*world){
	"Layout is the size of all blocks": func(w *world) {
		if got := w.store.Layout(); got != w.o.Layout {
			w.Fatalf("%+v, want %+v", got, w.o.Layout)
		}
	},

	"Lookup finds the blocks that exist and no others": func(w *world) {
		w.lacks(key(0), key(1))
		w.save(key(1), key(3))
		w.holds(key(1), key(3))
		w.lacks(key(0), key(2))
	},

	"Lookup keeps the order of the keys and allows duplicates": func(w *world) {
		w.save(key(1), key(2))
		asked := []kv.Key{key(9), key(2), key(1), key(9), key(2)}
		for i, there := range w.lookup(asked...) {
			if want := asked[i] != key(9) && !w.subject.Discards; there != want {
				w.Errorf("key %d: %t", i, there)
			}
		}
	},

	"Lookup of no keys finds none": func(w *world) {
		w.lookup()
		w.prefix(0)
	},

	"LookupPrefix counts up to the first gap": func(w *world) {
		w.prefix(0, key(0), key(1))
		w.save(key(0), key(1), key(2), key(4))
		w.prefix(3, key(0), key(1), key(2))
		w.prefix(3, key(0), key(1), key(2), key(3), key(4))
		w.prefix(0, key(3), key(4))
		w.prefix(1, key(4), key(3))
		w.prefix(1, key(4))
	},

	"LookupPrefix counts a duplicate key twice": func(w *world) {
		w.save(key(0), key(1))
		w.prefix(3, key(0), key(0), key(1), key(2))
	},

	"a gap anywhere in a long prefix is found": func(w *world) {
		all := keys(0, 140)
		w.save(all...)
		for _, gap := range []int{0, 1, 2, 63, 64, 65, 127, 128, 138, 139} {
			asked := append([]kv.Key(nil), all...)
			asked[gap] = key(1000)
			w.prefix(gap, asked...)
		}
		w.prefix(len(all), all...)
	},

	"more keys than any batch of an engine are looked up in one call": func(w *world) {
		w.save(keys(0, 100)...)
		asked := keys(0, 3000)
		for i, there := range w.lookup(asked...) {
			if want := i < 100 && !w.subject.Discards; there != want {
				w.Fatalf("key %d: %t", i, there)
			}
		}
		w.prefix(100, asked...)
	},

	"keys that differ in one bit name different blocks": func(w *world) {
		base := key(0)
		neighbours := []kv.Key{base}
		for bit := range len(base) * 8 {
			k := base
			k[bit/8] ^= 1 << (bit % 8)
			neighbours = append(neighbours, k)
		}
		w.save(base)
		w.lacks(neighbours[1:]...)
		w.save(neighbours[1:]...)
		w.holds(neighbours...)
	},

	"a key may be all zeros or all ones": func(w *world) {
		var ones kv.Key
		for i := range ones {
			ones[i] = 0xff
		}
		w.lacks(kv.Key{}, ones)
		w.save(kv.Key{}, ones)
		w.holds(kv.Key{}, ones)
	},

	"Prefetch of present, absent or no blocks does no harm": func(w *world) {
		w.save(key(0), key(1))
		w.within("Prefetch", func() {
			w.store.Prefetch(nil)
			w.store.Prefetch([]kv.Key{key(0), key(9), key(0)})
			w.store.Prefetch(keys(0, 2000))
		})
		w.holds(key(0), key(1))
		w.lacks(key(9))
	},

	"Prefetch has copied its keys when it returns": func(w *world) {
		w.save(keys(0, 8)...)
		for range 50 {
			wanted := keys(0, 8)
			w.store.Prefetch(wanted)
			for i := range wanted {
				wanted[i] = key(100 + i) // a data race if they are still read
			}
		}
		w.holds(keys(0, 8)...)
		w.lacks(keys(100, 8)...)
	},
}
