package indextest

import (
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

var restarting = map[string]func(*world){
	// 6.6: a restart loses everything, and all calls answer 500 until the engine
	// restarts too. 7.6: up to one interval is lost.
	"what was confirmed survives a crash, and initialize is not needed again": func(w *world) {
		w.initialize(4, 0, 1)
		for rank := range 2 {
			w.save(rank, "a", "b")
		}
		at := w.locate(1, "b")
		w.Crash()
		w.exist(true, "a", "b")
		if w.locate(1, "b") != at {
			w.Fatal("moved")
		}
		w.save(0, "c")
	},

	// 7.6: a snapshot taken mid-write loses reserved pages for good.
	"pages that were reserved before a crash become free": func(w *world) {
		w.initialize(2, 0)
		w.page(0, "a")
		w.page(0, "b")
		w.Crash()
		w.full(0, "its writer may still write")
		w.Advance(w.o.Reserve + w.o.Quarantine)
		w.save(0, "c", "d")
	},

	// The index cannot know how long it was down.
	"a page reserved before a crash is held in full, however long ago that was": func(w *world) {
		w.initialize(1, 0)
		page := w.page(0, "a")
		for range 2 {
			w.Advance(w.o.Reserve)
			w.Crash()
		}
		w.Advance(w.o.Reserve)
		w.full(0, "perhaps reserved a moment before the crash")
		if c := w.confirm(0, "a", page); c.Keys != 1 {
			w.Fatalf("%+v", c)
		}
		w.exist(true, "a")
	},

	"a writer that survives a crash of the index may confirm": func(w *world) {
		w.initialize(2, 0)
		page := w.page(0, "a")
		w.Crash()
		if c := w.confirm(0, "b", page); c.Keys != 0 {
			w.Fatal("another key")
		}
		if c := w.confirm(0, "a", page); c.Keys != 1 {
			w.Fatalf("%+v", c)
		}
		w.exist(true, "a")
	},

	// 7.6: stale mappings point at reused pages after a crash.
	"an evicted key does not come back to a page that another writer has": func(w *world) {
		w.initialize(1, 0)
		w.save(0, "a")
		w.page(0, "b")
		w.Crash()
		w.exist(false, "a")
	},

	"a location given out before a crash is valid after it": func(w *world) {
		w.initialize(1, 0)
		w.save(0, "a")
		w.locate(0, "a")
		w.Crash()
		w.Advance(w.o.Lease)
		w.full(0, "read before the crash")
		w.calm()
		w.save(0, "b")
	},

	"a page to be rewritten before a crash is protected after it": func(w *world) {
		w.initialize(1, 0)
		w.save(0, "a")
		w.reserve(0, "a")
		w.Crash()
		w.Advance(w.o.Reserve)
		w.full(0, "rewritten a moment ago")
	},

	"what was deleted or cleared stays so, and its pages are in quarantine": func(w *world) {
		w.initialize(2, 0)
		w.save(0, "a")
		w.locate(0, "a")
		if _, err := w.Index().Delete(w.Context(), space, []string{"a"}); err != nil {
			w.Fatal(err)
		}
		w.save(0, "b")
		if err := w.Index().Clear(w.Context(), space); err != nil {
			w.Fatal(err)
		}
		w.Crash()
		w.exist(false, "a", "b")
		w.full(0, "in quarantine")
		w.calm()
		w.save(0, "c", "d")
	},

	"after a crash the least recently written keys go first": func(w *world) {
		w.initialize(3, 0)
		w.save(0, "a", "b", "c")
		w.Crash()
		w.calm()
		w.save(0, "d")
		w.exist(false, "a")
		w.exist(true, "b", "c", "d")
	},

	"a key that one rank lacks is as invisible after a crash as before": func(w *world) {
		w.initialize(2, 0, 1)
		w.save(0, "a")
		w.Crash()
		w.exist(false, "a")
		if _, there := w.list()["a"]; !there {
			w.Fatal("lost")
		}
		w.save(1, "a")
		w.exist(true, "a")
		if w.locate(0, "a") == pageservice.None {
			w.Fatal("not on rank 0")
		}
	},

	"a clock that was set lengthens or shortens no quarantine across a restart": func(w *world) {
		for _, step := range []time.Duration{-100 * time.Hour, 100 * time.Hour} {
			w.fix(0)
			w.initialize(1, 0)
			w.reserve(0, "a")
			w.Advance(step)
			w.Crash()
			for _, want := range []int64{pageservice.None, 0} {
				if got := w.reserve(0, "b")[0].Page; got != want {
					w.Fatalf("clock set by %v: page %d, want %d", step, got, want)
				}
				w.Advance(70 * time.Second)
			}
		}
	},

	// --tp is the operator's decision. It holds for what was recorded without it, and
	// when it is taken back.
	"another number of needed ranks holds from the next start on": func(w *world) {
		w.initialize(4, 0, 1)
		w.save(0, "a")
		for _, want := range []struct {
			world   int
			visible bool
		}{{0, false}, {1, true}, {2, false}, {1, true}, {0, false}} {
			w.o.World = want.world
			w.Crash()
			w.exist(want.visible, "a")
		}
	},
}
