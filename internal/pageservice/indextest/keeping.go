package indextest

import (
	"fmt"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// A restart protects all keys, since clients may be using their pages. Of a full file, only pages that were kept
// free can be given out before that time is over.
var keeping = map[string]func(*world){
	"a full rank has pages for new keys right after a crash": func(w *world) {
		w.keep(0.25)
		w.initialize(8, 0, 1)
		for i := range 20 {
			for rank := range 2 {
				w.save(rank, fmt.Sprint(i))
			}
		}
		used := w.list()
		for n := range 2 { // what is given out after one crash is replaced before the next
			w.calm()
			w.save(0, fmt.Sprint("one more ", n))
			w.save(1, fmt.Sprint("one more ", n))
			w.kept(2, 0, 1)
			w.Crash()
			w.kept(2, 0, 1)
			for rank := range 2 {
				a, b := w.page(rank, fmt.Sprint("new ", n)), w.page(rank, "unconfirmed")
				for key, pages := range used {
					if w.locate(rank, key) != pageservice.None && (pages[rank] == a || pages[rank] == b) {
						w.Fatalf("pages %d and %d were given out, and %q is in one", a, b, key)
					}
				}
				w.full(rank, "all others may be in use")
				w.confirm(rank, fmt.Sprint("new ", n), a)
			}
			w.exist(true, fmt.Sprint("new ", n))
			w.calm()
			for i := range 4 {
				for rank := range 2 {
					w.save(rank, fmt.Sprint("more ", n, i))
				}
			}
			used = w.list()
		}
	},

	"pages are kept free even while no key may be evicted, and are given out last": func(w *world) {
		w.keep(0.25)
		w.initialize(8, 0)
		w.save(0, "a", "b", "c", "d", "e", "f")
		w.calm()
		w.save(0, "g") // in place of one of them
		if n := len(w.list()); n != 6 {
			w.Fatalf("%d keys", n)
		}
		w.kept(2, 0)
		for key := range w.list() {
			w.locate(0, key)
		}
		w.page(0, "h")
		w.kept(1, 0)
		w.page(0, "i")
		w.kept(0, 0)
		w.full(0, "all are in use")
		w.calm()
		w.save(0, "j")
		w.kept(2, 0)
	},

	"pages that were given up are kept free once they have rested": func(w *world) {
		w.keep(0.5)
		w.initialize(4, 0)
		w.save(0, "a", "b")
		w.locate(0, "a")
		w.locate(0, "b")
		w.save(0, "c")
		w.locate(0, "c")
		w.save(0, "d")
		w.kept(0, 0)
		if err := w.Index().Clear(w.Context(), space); err != nil {
			w.Fatal(err)
		}
		w.calm()
		w.save(0, "e")
		w.kept(2, 0)
		w.Crash()
		w.kept(2, 0)
		w.page(0, "f")
		w.page(0, "g")
		w.full(0, "given up before the crash")
	},

	"a rank whose number of pages changes keeps its share of the new one": func(w *world) {
		w.keep(0.25)
		w.initialize(8, 0)
		for i := range 10 {
			w.save(0, fmt.Sprint(i))
		}
		w.locate(0, "9")
		w.initialize(16, 0)
		w.full(0, "in use as pages of the old file")
		w.calm()
		for i := range 30 {
			w.save(0, fmt.Sprint(i))
		}
		w.kept(4, 0)
		if err := w.Index().Forget(w.Context(), space, 0); err != nil {
			w.Fatal(err)
		}
		w.initialize(8, 0)
		w.calm()
		for i := range 30 {
			w.save(0, fmt.Sprint(i))
		}
		w.kept(2, 0)
		w.Crash()
		w.page(0, "a")
		w.page(0, "b")
		w.full(0, "no more are kept")
	},

	"pages of a file that is given up are not kept free, since the log has them": func(w *world) {
		w.keep(0.5)
		w.initialize(8, 0)
		w.save(0, "a", "b", "c", "d", "e", "f")
		w.locate(0, "a")
		w.calm()
		if err := w.Index().GiveUp(w.Context(), space, 0); err != nil {
			w.Fatal(err)
		}
		before := w.rank(0)
		w.Crash()
		if r := w.rank(0); before.Free != 8 || r.Free < before.KeptFree {
			w.Fatalf("%+v before the crash, %+v after it", before, r)
		}
		w.calm()
		for i := range 10 {
			w.save(0, fmt.Sprint(i))
		}
		w.kept(4, 0)
	},

	"a small file keeps no page free": func(w *world) {
		w.keep(0.2)
		w.initialize(4, 0)
		w.save(0, "a", "b", "c", "d")
		w.exist(true, "a", "b", "c", "d")
		w.kept(0, 0)
		w.Crash()
		w.full(0, "full")
	},
}

// keep goes on with another, empty index, which keeps this share of pages free.
func (w *world) keep(share float64) {
	w.Helper()
	w.o.Free = share
	w.fix(0)
}

// kept checks how many pages of ranks are kept free.
func (w *world) kept(want int64, ranks ...int) {
	w.Helper()
	for _, id := range ranks {
		if r := w.rank(id); r.KeptFree != want {
			w.Fatalf("%+v, want %d kept free", r, want)
		}
	}
}
