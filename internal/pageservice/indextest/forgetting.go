package indextest

import (
	"errors"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

var forgetting = map[string]func(*world){
	// 6.6: there is no delete. 7.5: delete is unsafe while a reader holds the page.
	"a deleted key's page is in quarantine until its readers are gone": func(w *world) {
		w.initialize(1, 0)
		w.save(0, "a")
		w.locate(0, "a")
		n, err := w.Index().Delete(w.Context(), space, []string{"a", "a", "x"})
		if err != nil || n != 1 {
			w.Fatal(n, err)
		}
		w.exist(false, "a")
		w.Advance(w.o.Lease)
		w.full(0, "in quarantine")
		w.Advance(w.o.Quarantine)
		w.save(0, "b")
	},

	// 6.6: clear forgets the ranks, so that all calls answer 500 until every worker is
	// restarted; and hands out pages that others still read.
	"clear forgets keys and reservations, but not the ranks": func(w *world) {
		w.initialize(3, 0)
		w.save(0, "a", "b")
		w.locate(0, "a")
		page := w.page(0, "c")
		if err := w.Index().Clear(w.Context(), space); err != nil {
			w.Fatal(err)
		}
		w.exist(false, "a", "b")
		if c := w.confirm(0, "c", page); c != (pageservice.Confirmed{Ignored: 1}) {
			w.Fatalf("%+v", c)
		}
		w.full(0, "in quarantine")
		w.Advance(w.o.Quarantine)
		w.save(0, "d") // on the page of b, which no client read
		w.locate(0, "d")
		w.full(0, "being read, or written")
		w.Advance(w.o.Reserve)
		w.save(0, "e", "f")
	},

	"evict evicts what is not leased": func(w *world) {
		w.initialize(3, 0)
		w.save(0, "a", "b", "c")
		w.locate(0, "a")
		n, err := w.Index().Evict(w.Context(), space, 10)
		if err != nil || n != 2 {
			w.Fatal(n, err)
		}
		w.exist(true, "a")
		w.exist(false, "b", "c")
	},

	// 6.6: a repeat of initialize is a no-op even with another num_pages.
	"a rank that comes back with another number of pages starts empty": func(w *world) {
		w.initialize(4, 0)
		w.save(0, "a", "b")
		state, err := w.Index().Initialize(w.Context(), space, 0, pageservice.RankOptions{NumPages: 2})
		if err != nil || state != (pageservice.RankState{Dropped: 2}) {
			w.Fatal(state, err)
		}
		w.exist(false, "a", "b")
		w.calm()
		w.save(0, "a", "c")
		if r := w.rank(0); r.NumPages != 2 || r.Keyed != 2 {
			w.Fatalf("%+v", r)
		}
	},

	"pages of a rank that came back are not given out while a client may use them": func(w *world) {
		w.initialize(4, 0)
		w.save(0, "a")
		w.locate(0, "a")
		w.initialize(2, 0)
		w.full(0, "read a moment ago")
		w.Crash()
		w.full(0, "read a moment ago")
		w.Advance(w.o.Reserve + w.o.Quarantine)
		w.save(0, "b")
		w.Crash()
		w.save(0, "c") // the time has passed, also for later lives
	},

	// With the same number of pages, nothing shows that an engine has fewer ranks now.
	"a rank that is forgotten does not count, and keys are complete without it": func(w *world) {
		w.initialize(4, 0, 1)
		w.save(0, "a")
		w.save(1, "b")
		if err := w.Index().Forget(w.Context(), space, 1); err != nil {
			w.Fatal(err)
		}
		for range 2 {
			w.exist(true, "a")
			w.exist(false, "b")
			if _, err := w.Index().Locate(w.Context(), space, 1, []string{"a"}); !errors.Is(err, pageservice.ErrUnknownRank) {
				w.Fatal(err)
			}
			if err := w.Index().Forget(w.Context(), space, 1); !errors.Is(err, pageservice.ErrUnknownRank) {
				w.Fatal(err)
			}
			w.Crash()
		}
		w.initialize(4, 1)
		w.exist(false, "a")
	},

	"a rank that was forgotten gets pages again when no client uses its old ones": func(w *world) {
		w.initialize(4, 0)
		w.save(0, "a")
		w.locate(0, "a")
		if err := w.Index().Forget(w.Context(), space, 0); err != nil {
			w.Fatal(err)
		}
		if s := w.stat(); len(s) != 0 {
			w.Fatalf("%+v", s)
		}
		w.initialize(4, 0)
		w.full(0, "read a moment ago")
		w.Crash()
		w.full(0, "read a moment ago")
		w.calm()
		w.save(0, "a")
	},

	"a rank that comes back the same keeps all": func(w *world) {
		w.initialize(4, 0)
		w.save(0, "a")
		state, err := w.Index().Initialize(w.Context(), space, 0, pageservice.RankOptions{NumPages: 4})
		if err != nil || state != (pageservice.RankState{Known: true}) {
			w.Fatal(state, err)
		}
		w.exist(true, "a")
	},

	"ranks of an engine that is gone do not count until their next request": func(w *world) {
		w.initialize(4, 0, 1)
		w.initialize(8, 0) // alone now
		w.save(0, "a")
		w.exist(true, "a")
		w.Crash()
		w.exist(true, "a")
		w.locate(1, "a") // so it still exists
		w.exist(false, "a")
		w.save(1, "a")
		w.exist(true, "a")
	},

	"ranks that come back one after the other count together": func(w *world) {
		w.initialize(4, 0, 1)
		w.initialize(8, 0, 1)
		w.save(1, "a")
		w.exist(false, "a")
		w.save(0, "a")
		w.exist(true, "a")
	},
}
