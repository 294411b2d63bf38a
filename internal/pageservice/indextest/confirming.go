package indextest

import (
	"context"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

var confirming = map[string]func(*world){
	"a key is visible when every rank has confirmed it": func(w *world) {
		w.initialize(4, 0, 1)
		w.save(0, "a")
		w.exist(false, "a")
		if w.locate(0, "a") != pageservice.None {
			w.Fatal("located too early")
		}
		w.save(1, "a")
		w.exist(true, "a")
	},

	// 6.6: a key that rank 0 confirmed while it was alone is complete too early, and
	// incomplete forever once rank 1 confirms it.
	"the start-up race hides a key until the late rank has it": func(w *world) {
		w.initialize(4, 0)
		w.save(0, "a")
		w.exist(true, "a")
		w.initialize(4, 1)
		w.exist(false, "a")
		w.save(1, "a")
		w.exist(true, "a")
		if w.locate(1, "a") == pageservice.None {
			w.Fatal("not on rank 1")
		}
	},

	"a fixed number of ranks rules out the start-up race": func(w *world) {
		w.fix(2)
		for rank := range 2 {
			w.initialize(4, rank)
			w.save(rank, "a")
			w.exist(rank == 1, "a")
		}
	},

	"with a fixed number of ranks, no other rank takes the place of one": func(w *world) {
		w.fix(2)
		w.initialize(4, 0, 1, 2)
		w.save(1, "a")
		w.save(2, "a")
		w.exist(false, "a")
		w.save(0, "a")
		w.exist(true, "a")
		w.save(0, "b")
		w.save(1, "b")
		w.exist(true, "b")
	},

	// 6.6: a second confirm of a partial key by the same rank overwrites, and leaks
	// the first page. 7.6: two writers of one key leak one page.
	"of two writers of a key, the first keeps its page and the second loses it": func(w *world) {
		w.initialize(2, 0)
		first, second := w.page(0, "a"), w.page(0, "a")
		w.confirm(0, "a", first)
		if c := w.confirm(0, "a", second); c != (pageservice.Confirmed{Released: 1}) {
			w.Fatalf("%+v", c)
		}
		if w.locate(0, "a") != first {
			w.Fatal("the second page won")
		}
		if r := w.rank(0); r.Keyed != 1 || r.Quarantined != 1 {
			w.Fatalf("%+v", r)
		}
		w.Advance(w.o.Quarantine)
		if r := w.rank(0); r.Free != 1 {
			w.Fatalf("%+v", r)
		}
	},

	"two pages for one key in one batch are one key": func(w *world) {
		w.initialize(2, 0)
		first, second := w.page(0, "a"), w.page(0, "a")
		c, err := w.Index().Confirm(w.Context(), space, 0, []pageservice.Placed{{Key: "a", Page: first}, {Key: "a", Page: second}}, nil)
		if err != nil || c != (pageservice.Confirmed{Keys: 1, Released: 1}) {
			w.Fatalf("%+v %v", c, err)
		}
	},

	"a repeated confirmation changes nothing": func(w *world) {
		w.initialize(2, 0)
		page := w.page(0, "a")
		for range 3 {
			if c := w.confirm(0, "a", page); c != (pageservice.Confirmed{Keys: 1}) {
				w.Fatalf("%+v", c)
			}
		}
		if r := w.rank(0); r.Keyed != 1 || r.Free != 1 {
			w.Fatalf("%+v", r)
		}
	},

	// 6.6: failed writes release pages that may belong to a complete key, so that
	// another key receives a live page.
	"a page that belongs to a key is not released by a failed write": func(w *world) {
		w.initialize(1, 0)
		w.save(0, "a")
		page := w.reserve(0, "a")[0].Page // to be written again
		if c := w.release(0, page); c != (pageservice.Confirmed{Ignored: 1}) {
			w.Fatalf("%+v", c)
		}
		w.exist(true, "a")
		w.full(0, "still the key's")
	},

	"a released page is in quarantine before it is given out": func(w *world) {
		w.initialize(1, 0)
		if c := w.release(0, w.page(0, "a")); c != (pageservice.Confirmed{Released: 1}) {
			w.Fatalf("%+v", c)
		}
		w.Advance(w.o.Reserve)
		w.full(0, "in quarantine")
		w.Advance(w.o.Quarantine)
		page := w.page(0, "b")
		w.Advance(w.o.Reserve)
		w.release(0, page)
		w.full(0, "in quarantine")
		w.Advance(w.o.Quarantine)
		w.save(0, "c")
	},

	// A release names no key, so the index cannot tell whose it is.
	"a former writer's release takes nothing from the present one": func(w *world) {
		w.initialize(1, 0)
		page := w.page(0, "slow")
		w.Advance(w.o.Reserve + w.o.Quarantine)
		if w.page(0, "a") != page {
			w.Fatal("another page")
		}
		w.release(0, page) // the slow writer fails
		w.Advance(w.o.Reserve)
		w.full(0, "being written")
		if c := w.confirm(0, "a", page); c.Keys != 1 {
			w.Fatalf("%+v", c)
		}
		w.exist(true, "a")
	},

	// A client goes away in the middle of a request, and the server reuses the memory of
	// the request.
	"the caller's slices may be changed after any return, even an early one": func(w *world) {
		w.initialize(256, 0)
		live := w.page(0, "live")
		for i := range 30 {
			keys := []string{fmt.Sprint("a", i), fmt.Sprint("b", i)}
			g := w.reserve(0, keys...)
			written, release := []pageservice.Placed{{Key: keys[0], Page: g[0].Page}}, []int64{g[1].Page}
			ctx, cancel := context.WithTimeout(w.Context(), time.Duration(i)*20*time.Microsecond)
			_, _ = w.Index().Confirm(ctx, space, 0, written, release)
			written[0], release[0] = pageservice.Placed{Key: "x", Page: live}, live
			cancel()
			more := []string{fmt.Sprint("c", i)}
			ctx, cancel = context.WithTimeout(w.Context(), time.Duration(i)*20*time.Microsecond)
			_, _ = w.Index().Reserve(ctx, space, 0, more, true)
			more[0] = "live"
			cancel()
		}
		w.page(0, "last") // writes are in the order of calls: all earlier ones have ended
		if r := w.rank(0); r.Reserved < 1 {
			w.Fatalf("%+v", r)
		}
		w.Advance(w.o.Reserve - 1)
		if c := w.confirm(0, "live", live); c.Keys != 1 {
			w.Fatalf("%+v", c)
		}
		w.exist(true, "live")
		w.exist(false, "x")
	},

	"a page given up twice is given up once": func(w *world) {
		w.initialize(2, 0)
		page := w.page(0, "a")
		if c := w.release(0, page, page); c != (pageservice.Confirmed{Released: 1, Ignored: 1}) {
			w.Fatalf("%+v", c)
		}
	},

	"a late confirmation counts while no other writer has the page": func(w *world) {
		w.initialize(1, 0)
		page := w.page(0, "a")
		w.Advance(w.o.Reserve + w.o.Quarantine/2)
		if c := w.confirm(0, "a", page); c.Keys != 1 {
			w.Fatalf("%+v", c)
		}
		w.exist(true, "a")
	},

	"a confirmation that comes too late is ignored": func(w *world) {
		w.initialize(1, 0)
		page := w.page(0, "a")
		w.Advance(w.o.Reserve + w.o.Quarantine)
		w.page(0, "b") // the same page
		if c := w.confirm(0, "a", page); c != (pageservice.Confirmed{Ignored: 1}) {
			w.Fatalf("%+v", c)
		}
		w.exist(false, "a")
		if c := w.confirm(0, "b", page); c.Keys != 1 {
			w.Fatalf("%+v", c)
		}
	},

	"a page that was never reserved, or for another key, is not confirmed": func(w *world) {
		w.initialize(4, 0)
		w.save(0, "a")
		page := w.page(0, "b")
		for _, p := range []pageservice.Placed{{Key: "x", Page: 3}, {Key: "x", Page: page}, {Key: "x", Page: w.locate(0, "a")},
			{Key: "x", Page: -1}, {Key: "x", Page: 4}, {Key: "x", Page: 1 << 62}} {
			if c := w.confirm(0, p.Key, p.Page, p.Page); p.Page != page && c != (pageservice.Confirmed{Ignored: 2}) {
				w.Fatalf("%+v: %+v", p, c)
			}
		}
		w.exist(false, "x")
		w.exist(true, "a")
	},

	"a page that is confirmed and released at once is kept": func(w *world) {
		w.initialize(2, 0)
		page := w.page(0, "a")
		if c := w.confirm(0, "a", page, page); c != (pageservice.Confirmed{Keys: 1, Ignored: 1}) {
			w.Fatalf("%+v", c)
		}
		w.exist(true, "a")
	},
}
