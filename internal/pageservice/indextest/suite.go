// Package indextest is the suite that every pageservice.Book passes. Each test is named for
// what holds, and says which defect of the reference servers (docs/spec/clients.md,
// 6.6 and 7.6) it rules out.
package indextest

import (
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Harness is a book under test, in a world that the suite controls. The book has the
// default times.
type Harness interface {
	// Book is the book as it runs now.
	Book() pageservice.Book
	// Advance moves the book's clock.
	Advance(d time.Duration)
	// Crash ends the book as kill -9 would, and starts it again on what is left.
	Crash()
}

// Run runs the suite; start starts an empty book.
func Run(t *testing.T, start func(t *testing.T, o pageservice.Options) Harness) {
	for _, group := range []map[string]func(*world){
		reserving, confirming, reading, forgetting, restarting, refusing,
	} {
		for name, test := range group {
			t.Run(name, func(t *testing.T) {
				w := &world{T: t, Harness: start(t, pageservice.Options{}), start: start, o: pageservice.Options{}.WithDefaults()}
				test(w)
				w.addsUp()
			})
		}
	}
}

// world is a harness with words for the tests.
type world struct {
	*testing.T
	Harness
	start func(*testing.T, pageservice.Options) Harness
	o     pageservice.Options
}

var space = pageservice.Space{Set: pageservice.VLLM}

// fix goes on with another book, in which so many ranks make a key complete.
func (w *world) fix(ranks int) { w.Harness = w.start(w.T, pageservice.Options{World: ranks}) }

// init makes ranks known, of so many pages each.
func (w *world) initialize(numPages int64, ranks ...int) {
	w.Helper()
	for _, rank := range ranks {
		if _, err := w.Book().Initialize(w.Context(), space, rank, pageservice.RankOptions{NumPages: numPages}); err != nil {
			w.Fatal(err)
		}
	}
}

// reserve reserves pages, all or nothing.
func (w *world) reserve(rank int, keys ...string) []pageservice.Grant {
	w.Helper()
	grants, err := w.Book().Reserve(w.Context(), space, rank, keys, true)
	if err != nil {
		w.Fatal(err)
	}
	return grants
}

// page reserves a page for a key, which must get one.
func (w *world) page(rank int, key string) int64 {
	w.Helper()
	g := w.reserve(rank, key)[0]
	if g.Page == pageservice.None || g.Present {
		w.Fatalf("rank %d, %q: %+v, want a new page", rank, key, g)
	}
	return g.Page
}

// confirm confirms one page.
func (w *world) confirm(rank int, key string, page int64, release ...int64) pageservice.Confirmed {
	w.Helper()
	c, err := w.Book().Confirm(w.Context(), space, rank, []pageservice.Placed{{Key: key, Page: page}}, release)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// release gives pages up.
func (w *world) release(rank int, release ...int64) pageservice.Confirmed {
	w.Helper()
	c, err := w.Book().Confirm(w.Context(), space, rank, nil, release)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// save makes a rank have keys.
func (w *world) save(rank int, keys ...string) {
	w.Helper()
	for _, key := range keys {
		w.confirm(rank, key, w.page(rank, key))
	}
}

// exist checks which keys exist.
func (w *world) exist(want bool, keys ...string) {
	w.Helper()
	found, err := w.Book().Exists(w.Context(), space, keys)
	if err != nil {
		w.Fatal(err)
	}
	for i, key := range keys {
		if found[i] != want {
			w.Fatalf("%q exists: %t", key, found[i])
		}
	}
}

// locate returns the page of a key.
func (w *world) locate(rank int, key string) int64 {
	w.Helper()
	found, err := w.Book().Locate(w.Context(), space, rank, []string{key})
	if err != nil {
		w.Fatal(err)
	}
	return found[0]
}

// full checks that a new key gets no page.
func (w *world) full(rank int, why string) {
	w.Helper()
	if g := w.reserve(rank, "one too many")[0]; g.Page != pageservice.None {
		w.Fatalf("%s, and page %d was given out", why, g.Page)
	}
}

// calm lets all leases, reservations and rests end.
func (w *world) calm() { w.Advance(w.o.Reserve + w.o.Lease + 2*w.o.Quarantine) }

// rank returns the counts of a rank.
func (w *world) rank(id int) pageservice.RankPages {
	w.Helper()
	for _, s := range w.stat() {
		for _, r := range s.Ranks {
			if s.Space == space && r.Rank == id {
				return r
			}
		}
	}
	w.Fatalf("rank %d is unknown", id)
	panic("not reached")
}

func (w *world) stat() []pageservice.SpaceState {
	w.Helper()
	states, err := w.Book().Stat(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return states
}

// addsUp checks that every page is counted once.
func (w *world) addsUp() {
	w.Helper()
	for _, s := range w.stat() {
		for _, r := range s.Ranks {
			if r.Free+r.Reserved+r.Keyed+r.Resting != r.NumPages {
				w.Errorf("%v: %+v does not add up", s.Space, r)
			}
		}
	}
}
