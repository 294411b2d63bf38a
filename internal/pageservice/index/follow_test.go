package index

import (
	"fmt"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// replayAll returns an index that follows a log, and has read so far.
func replayAll(tb testing.TB, recs [][]byte, o Options) *Index {
	tb.Helper()
	x := newIndex(nil, o)
	for _, rec := range recs {
		if err := x.replayRecord(rec); err != nil {
			tb.Fatal(err)
		}
	}
	return x
}

// A host that follows takes no more memory than the leader did at its peak, whatever the leader's clients do for
// however long: also if they reserve pages and never confirm them.
func TestAFollowerTakesNoMoreThanTheLeader(t *testing.T) {
	clock := newClock()
	leader, log := lead(t, nil, Options{Now: clock.now}, nil)
	const pages, batch = 4096, 256
	mustInitialize(t, leader, pages)
	n, most := 0, int64(0)
	write := func(batches int, confirm bool) {
		t.Helper()
		for range batches {
			keys := make([]string, batch)
			for i := range keys {
				keys[i] = fmt.Sprintf("%064x", n)
				n++
			}
			grants, err := leader.Reserve(ctx, modelSpace, 0, keys, true)
			if err != nil || grants[0].Page == pageservice.None {
				t.Fatal(grants[0], err)
			}
			most = max(most, leader.used.Load())
			if confirm {
				written := make([]pageservice.Placed, batch)
				for i, g := range grants {
					written[i] = pageservice.Placed{Key: keys[i], Page: g.Page}
				}
				if _, err := leader.Confirm(ctx, modelSpace, 0, written, nil); err != nil {
					t.Fatal(err)
				}
			}
			clock.advance(5 * time.Second) // so all reservations have ended after 16 batches
		}
	}
	check := func(what string) {
		t.Helper()
		most = max(most, leader.used.Load())
		x := replayAll(t, log.recs, Options{})
		if used := x.used.Load(); used > most || x.forgets {
			t.Errorf("%s: a follower takes %d bytes, the leader took %d at most", what, used, most)
		}
	}
	write(pages/batch, true)
	check("filled")
	write(8*pages/batch, true)
	check("written over")
	write(8*pages/batch, false)
	check("reserved again and again")
	write(2*pages/batch, true)
	if _, err := leader.Evict(ctx, modelSpace, pages/2); err != nil {
		t.Fatal(err)
	}
	check("half of it evicted")
	if err := leader.Clear(ctx, modelSpace); err != nil {
		t.Fatal(err)
	}
	check("cleared")
}
