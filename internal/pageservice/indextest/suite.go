// Package indextest tests a page index over an implementation of its log: every
// pageservice.Log passes. Each test is named for what holds, and says which defect of
// the reference servers (docs/spec/clients.md, 6.6 and 7.6) it rules out.
package indextest

import (
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
)

// Logs provides the logs of one test, all on one stored state.
type Logs interface {
	// New returns a log on the stored state, not started.
	New() pageservice.Log
	// Crash leaves of the stored state what kill -9 of its process would leave. The log
	// in use goes on without effect on the stored state, until it is closed.
	Crash()
}

// Run runs the suite; logs returns an empty log state.
func Run(t *testing.T, logs func(t *testing.T) Logs) {
	for _, group := range []map[string]func(*world){
		reserving, confirming, lateWrites, reading, forgetting, restarting, keeping, refusing,
	} {
		for name, test := range group {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				w := &world{T: t, newLogs: logs, logs: logs(t), o: pageservice.Options{}.WithDefaults(), clock: time.Unix(1_800_000_000, 0)}
				w.open()
				test(w)
				w.addsUp()
			})
		}
	}
}

// world is an index under test, in surroundings that the suite controls.
type world struct {
	*testing.T
	newLogs func(*testing.T) Logs
	logs    Logs
	o       pageservice.Options
	clock   time.Time
	index   *index.Index
}

func (w *world) open() {
	w.Helper()
	x, err := index.Open(w.logs.New(), index.Options{Options: w.o, Now: func() time.Time { return w.clock }})
	if err != nil {
		w.Fatal(err)
	}
	w.index = x
	w.Cleanup(func() {
		if err := x.Check(); err != nil {
			w.Error(err)
		}
		if err := x.Close(); err != nil {
			w.Error(err)
		}
	})
}

// Index returns the index as it runs now.
func (w *world) Index() *index.Index { return w.index }

// Advance moves the clock of the index.
func (w *world) Advance(d time.Duration) { w.clock = w.clock.Add(d) }

// Crash ends the index as kill -9 would, and opens it again on what is left.
func (w *world) Crash() {
	w.Helper()
	w.logs.Crash()
	w.open()
}

var space = pageservice.Space{Set: pageservice.VLLM}

// fix goes on with another, empty index, in which a key needs so many ranks.
func (w *world) fix(ranks int) {
	w.logs = w.newLogs(w.T)
	w.o.World = ranks
	w.open()
}

// initialize makes ranks known, of so many pages each.
func (w *world) initialize(numPages int64, ranks ...int) {
	w.Helper()
	for _, rank := range ranks {
		if _, err := w.Index().Initialize(w.Context(), space, rank, pageservice.RankOptions{NumPages: numPages}); err != nil {
			w.Fatal(err)
		}
	}
}

// reserve reserves pages, all or nothing.
func (w *world) reserve(rank int, keys ...string) []pageservice.Grant {
	w.Helper()
	grants, err := w.Index().Reserve(w.Context(), space, rank, keys, true)
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
	c, err := w.Index().Confirm(w.Context(), space, rank, []pageservice.Placed{{Key: key, Page: page}}, release)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// release gives up pages.
func (w *world) release(rank int, release ...int64) pageservice.Confirmed {
	w.Helper()
	c, err := w.Index().Confirm(w.Context(), space, rank, nil, release)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

// save stores keys on a rank.
func (w *world) save(rank int, keys ...string) {
	w.Helper()
	for _, key := range keys {
		w.confirm(rank, key, w.page(rank, key))
	}
}

// exist checks which keys exist.
func (w *world) exist(want bool, keys ...string) {
	w.Helper()
	found, err := w.Index().Exists(w.Context(), space, keys)
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
	found, err := w.Index().Locate(w.Context(), space, rank, []string{key})
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

// calm advances the clock until all leases, reservations and quarantines have ended.
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
	states, err := w.Index().Stat(w.Context())
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
			if r.Free+r.Reserved+r.Keyed+r.Quarantined != r.NumPages {
				w.Errorf("%v: %+v does not add up", s.Space, r)
			}
		}
	}
}
