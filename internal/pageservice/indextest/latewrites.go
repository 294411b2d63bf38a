package indextest

import (
	"errors"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// late is how long a write may still arrive after its writer gave it up.
const late = 5 * time.Minute

// lateWrites: a page that was handed out to be written, and given up, goes to no other before a write that a host could
// not finish has arrived or been dropped.
var lateWrites = map[string]func(*world){
	"late writes: a reservation ended": func(w *world) {
		w.writesMayBeLate()
		w.page(0, "a")
		w.restsFor(w.o.Reserve)
	},
	"late writes: its writer released the page": func(w *world) {
		w.writesMayBeLate()
		w.release(0, w.page(0, "a"))
		w.restsFor(w.o.Reserve)
	},
	"late writes: all was cleared": func(w *world) {
		w.writesMayBeLate()
		w.page(0, "a")
		if err := w.Index().Clear(w.Context(), space); err != nil {
			w.Fatal(err)
		}
		w.restsFor(w.o.Reserve)
	},
	"late writes: after a restart": func(w *world) {
		w.writesMayBeLate()
		w.page(0, "a")
		w.Crash()
		w.restsFor(w.o.Reserve)
	},
	"late writes: a rank is forgotten": func(w *world) {
		w.writesMayBeLate()
		w.page(0, "a")
		if err := w.Index().GiveUp(w.Context(), space, 0); !errors.Is(err, pageservice.ErrInUse) {
			w.Fatal(err)
		}
		w.Advance(w.o.Reserve + w.o.Quarantine + late - 1)
		if err := w.Index().GiveUp(w.Context(), space, 0); !errors.Is(err, pageservice.ErrInUse) {
			w.Fatal(err)
		}
		w.Advance(late)
		if err := w.Index().GiveUp(w.Context(), space, 0); err != nil {
			w.Fatal(err)
		}
	},
	"late writes: what was confirmed was written, and rests no longer than without": func(w *world) {
		w.writesMayBeLate()
		w.save(0, "a")
		w.save(0, "b") // a is evicted
		w.Crash()
		w.Advance(w.o.Reserve + w.o.Quarantine)
		w.save(0, "c") // and b
		if _, err := w.Index().Delete(w.Context(), space, []string{"c"}); err != nil {
			w.Fatal(err)
		}
		w.full(0, "in quarantine")
		w.Advance(w.o.Quarantine)
		w.save(0, "d")
	},
}

// writesMayBeLate goes on with an index for such a file system, and a rank of one page.
func (w *world) writesMayBeLate() {
	w.o.LateWrites = late
	w.fix(0)
	w.initialize(1, 0)
}

// restsFor checks that the only page is given out after that time, the quarantine and that of late writes, and not before.
func (w *world) restsFor(d time.Duration) {
	w.Helper()
	w.Advance(d + w.o.Quarantine + late - 1)
	w.full(0, "while a write may still arrive")
	w.Advance(1)
	w.save(0, "b")
}
