package indextest

import (
	"fmt"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

var reserving = map[string]func(*world){
	// 6.6: no eviction and no delete, so the store stops accepting once full.
	"a full rank evicts what was used least recently": func(w *world) {
		w.initialize(3, 0)
		w.save(0, "a", "b", "c")
		w.Advance(1)
		w.locate(0, "a")
		w.calm()
		w.locate(0, "b")
		w.save(0, "d")
		w.exist(false, "c")
		w.exist(true, "a", "b", "d")
	},

	// 7.6: eviction without pins lets a concurrent reader receive another key's bytes.
	"a located key is not evicted until lease and quarantine have ended": func(w *world) {
		w.initialize(1, 0)
		w.save(0, "a")
		w.locate(0, "a")
		w.full(0, "leased")
		w.Advance(w.o.Lease)
		w.full(0, "in quarantine")
		w.exist(true, "a") // holds it again
		w.Advance(w.o.Hold + w.o.Quarantine)
		w.save(0, "b")
		w.exist(false, "a")
	},

	"a key that was reported to exist still exists when it is located": func(w *world) {
		w.initialize(1, 0)
		w.save(0, "a")
		w.exist(true, "a")
		w.Advance(w.o.Hold - 1)
		w.full(0, "held")
		if w.locate(0, "a") == pageservice.None {
			w.Fatal("gone")
		}
	},

	// 6.6: a key that exists is allocated again, and rewritten while others read it.
	"a present key keeps its page, which is protected while it may be rewritten": func(w *world) {
		w.initialize(1, 0)
		w.save(0, "a")
		if g := w.reserve(0, "a")[0]; !g.Present || g.Page != w.locate(0, "a") {
			w.Fatalf("%+v", g)
		}
		w.Advance(w.o.Reserve)
		w.full(0, "just rewritten")
		w.Advance(w.o.Quarantine)
		w.save(0, "b")
	},

	// 6.6: duplicate keys inside one batch leak all but the last page.
	"equal keys of a batch get one page": func(w *world) {
		w.initialize(2, 0)
		g := w.reserve(0, "a", "a", "b", "a")
		if g[0] != g[1] || g[0] != g[3] || g[0].Page == g[2].Page || g[2].Page == pageservice.None {
			w.Fatalf("%+v", g)
		}
		if r := w.rank(0); r.Reserved != 2 {
			w.Fatalf("%+v", r)
		}
	},

	// 6.6: with too few free pages a batch loses its new half although only present
	// keys are too many.
	"all or nothing counts only the keys that need a page": func(w *world) {
		w.initialize(3, 0)
		w.save(0, "a", "b")
		g := w.reserve(0, "a", "b", "c", "c")
		if !g[0].Present || !g[1].Present || g[2].Page == pageservice.None {
			w.Fatalf("%+v", g)
		}
	},

	"all or nothing grants no page if not every key can get one": func(w *world) {
		w.initialize(3, 0)
		w.save(0, "a")
		g := w.reserve(0, "a", "b", "c", "d")
		if !g[0].Present || g[1].Page != pageservice.None || g[2].Page != pageservice.None || g[3].Page != pageservice.None {
			w.Fatalf("%+v", g)
		}
		if r := w.rank(0); r.Reserved != 0 || r.Free != 2 {
			w.Fatalf("%+v", r)
		}
	},

	"without all or nothing, the first keys get the pages that there are": func(w *world) {
		w.initialize(2, 0)
		g, err := w.Index().Reserve(w.Context(), space, 0, []string{"a", "b", "c"}, false)
		if err != nil || g[0].Page == pageservice.None || g[1].Page == pageservice.None || g[2].Page != pageservice.None {
			w.Fatalf("%+v %v", g, err)
		}
	},

	// 7.6: an empty map and an empty list raise KeyError.
	"a rank whose pages are all reserved grants none": func(w *world) {
		w.initialize(1, 0)
		w.page(0, "a")
		w.full(0, "reserved")
	},

	// 6.6, 7.6: reserved pages that are never confirmed leak.
	"a reservation ends, and its page returns after the quarantine": func(w *world) {
		w.initialize(1, 0)
		w.page(0, "a")
		w.Advance(w.o.Reserve)
		w.full(0, "in quarantine")
		if r := w.rank(0); r.Quarantined != 1 {
			w.Fatalf("%+v", r)
		}
		w.Advance(w.o.Quarantine)
		w.save(0, "b")
	},

	// A store that searches for victims only among the oldest keys stops accepting
	// although there are some.
	"keys that are not leased are found behind any number that are": func(w *world) {
		leased, idle, more := keysNamed("leased", 17_000), keysNamed("idle", 3_000), keysNamed("more", 100)
		w.initialize(20_000, 0)
		w.saveAll(0, leased)
		if _, err := w.Index().Locate(w.Context(), space, 0, leased); err != nil {
			w.Fatal(err)
		}
		w.saveAll(0, idle[:100])
		w.Advance(1)
		w.saveAll(0, idle[100:])
		w.saveAll(0, more)
		w.exist(true, leased...)
		w.exist(false, idle[:100]...)
		w.exist(true, idle[100:]...)
	},

	// The same holds for keys of other ranks.
	"keys of a rank are found behind any number that only others have": func(w *world) {
		theirs, ours := keysNamed("theirs", 17_000), keysNamed("ours", 100)
		w.initialize(20_000, 0)
		w.initialize(100, 1)
		w.saveAll(0, theirs)
		w.saveAll(1, ours)
		w.calm()
		w.save(1, "new")
		if r := w.rank(0); r.Keyed != int64(len(theirs)) {
			w.Fatalf("%+v", r)
		}
		if r := w.rank(1); r.Keyed != 100 {
			w.Fatalf("%+v", r)
		}
	},

	// 6.6: partial keys stay for ever.
	"keys that no other rank completes are evicted first": func(w *world) {
		w.initialize(2, 0, 1)
		for rank := range 2 {
			w.save(rank, "whole")
		}
		w.save(0, "half")
		w.locate(0, "whole")
		w.full(0, "perhaps being completed")
		w.calm()
		w.save(0, "new")
		w.exist(true, "whole")
		if c := w.list(); c["half"] != nil {
			w.Fatalf("%+v", c)
		}
	},

	"a rank of two thousand million pages costs no memory for each": func(w *world) {
		w.initialize(pageservice.MaxPages, 0)
		w.save(0, "a")
		if r := w.rank(0); r.Free != pageservice.MaxPages-1 {
			w.Fatalf("%+v", r)
		}
	},

	"many more keys than pages pass through": func(w *world) {
		w.initialize(8, 0)
		for i := range 100 {
			w.save(0, fmt.Sprint(i))
		}
		if r := w.rank(0); r.Keyed != 8 {
			w.Fatalf("%+v", r)
		}
	},
}

func keysNamed(name string, n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprint(name, " ", i)
	}
	return keys
}

// saveAll stores keys on a rank, in one batch.
func (w *world) saveAll(rank int, keys []string) {
	w.Helper()
	written := make([]pageservice.Placed, len(keys))
	for i, g := range w.reserve(rank, keys...) {
		written[i] = pageservice.Placed{Key: keys[i], Page: g.Page}
	}
	c, err := w.Index().Confirm(w.Context(), space, rank, written, nil)
	if err != nil || c.Keys != len(keys) {
		w.Fatalf("%d keys: %+v %v", len(keys), c, err)
	}
}

// list returns the pages of all keys.
func (w *world) list() map[string]map[int]int64 {
	w.Helper()
	entries, err := w.Index().List(w.Context(), space, "", 1000)
	if err != nil {
		w.Fatal(err)
	}
	all := map[string]map[int]int64{}
	for _, e := range entries {
		all[e.Key] = e.Pages
	}
	return all
}
