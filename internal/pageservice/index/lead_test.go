package index

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// lead opens an index on records that another host has written, as that host's successor.
func lead(t *testing.T, recs [][]byte, o Options, before func(pageservice.LogOwner)) (*Index, *tape) {
	t.Helper()
	log := &tape{recs: slices.Clone(recs)}
	log.play = func(owner pageservice.LogOwner) error {
		err := log.replay(0, len(log.recs))
		if before != nil {
			before(owner)
		}
		return err
	}
	x, err := Open(log, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(x.Check(), x.Close()); err != nil {
			t.Error(err)
		}
	})
	return x, log
}

func mustInitialize(t *testing.T, x *Index, pages int64) {
	t.Helper()
	if _, err := x.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: pages}); err != nil {
		t.Fatal(err)
	}
}

// reserveOne returns the page that a key gets, or None.
func reserveOne(t *testing.T, x *Index, key string) int64 {
	t.Helper()
	grants, err := x.Reserve(ctx, modelSpace, 0, []string{key}, true)
	if err != nil {
		t.Fatal(err)
	}
	return grants[0].Page
}

func mustSave(t *testing.T, x *Index, keys ...string) {
	t.Helper()
	for _, key := range keys {
		c, err := x.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: key, Page: reserveOne(t, x, key)}}, nil)
		if err != nil || c.Keys != 1 {
			t.Fatal(key, c, err)
		}
	}
}

// A host that has lost the lead may answer queries until its term has ended. What it told clients in that time
// is protected by its successor.
func TestWhatTheFormerLeaderMayStillTellIsProtected(t *testing.T) {
	before, log := lead(t, nil, Options{}, nil)
	mustInitialize(t, before, 1)
	mustSave(t, before, "a")

	const handover = 5 * time.Second
	clock := newClock()
	o := Options{Now: clock.now, Handover: handover}
	o.Options = o.WithDefaults()
	for _, promised := range []pageservice.Promises{{}, {Lease: 10 * time.Minute}, {Reserve: 20 * time.Minute, Quarantine: time.Minute}} {
		o.Promised = promised // with other options than this host's
		x, _ := lead(t, log.recs, o, nil)
		clock.advance(handover + max(o.Reserve, promised.Lease, promised.Reserve) + max(o.Quarantine, promised.Quarantine) - 1)
		if page := reserveOne(t, x, "b"); page != pageservice.None {
			t.Fatalf("%+v: page %d was given out, and a client of the former leader may write it again", promised, page)
		}
		clock.advance(1)
		mustSave(t, x, "b")
	}
}

// A page that the former leader has handed out to be written rests for as long as that one's options say that a write may come late.
func TestLateWritesOfTheFormerLeader(t *testing.T) {
	before, log := lead(t, nil, Options{}, nil)
	mustInitialize(t, before, 1)
	reserveOne(t, before, "a")

	clock := newClock()
	o := Options{Now: clock.now, Promised: pageservice.Promises{LateWrites: time.Hour}}
	o.Options = o.WithDefaults()
	x, _ := lead(t, log.recs, o, nil)
	clock.advance(o.Reserve + o.Quarantine + time.Hour - 1)
	if page := reserveOne(t, x, "b"); page != pageservice.None {
		t.Fatalf("page %d was given out, and a write of the one before may still arrive", page)
	}
	clock.advance(1)
	mustSave(t, x, "b")
}

// A log that was lost as a whole does not know which ranks have pages in use. So none that comes soon gets any; nor
// does it from the next host that leads.
func TestRanksThatALostLogMayHaveHadGetNoPagesForAWhile(t *testing.T) {
	clock := newClock()
	o := Options{Now: clock.now}
	o.Options = o.WithDefaults()
	first, log := lead(t, nil, o, func(owner pageservice.LogOwner) { owner.Missing("it was emptied") })
	second, _ := lead(t, log.recs, o, nil)
	for i, x := range []*Index{first, second} {
		mustInitialize(t, x, 1)
		if page := reserveOne(t, x, "a"); page != pageservice.None {
			t.Fatalf("leader %d gives page %d out, and a client may be using it", i, page)
		}
	}
	clock.advance(o.Reserve + o.Quarantine)
	for _, x := range []*Index{first, second} {
		mustSave(t, x, "a")
	}
	if states, err := first.Stat(ctx); err != nil || len(states) != 1 {
		t.Fatal(states, err)
	}
}

// limited is a log without room.
type limited struct {
	*tape
	err error
}

func (l *limited) Room() error { return l.err }

// A store that is too full for anything new still takes what completes or ends what is there.
func TestALogWithoutRoomTakesNothingNew(t *testing.T) {
	log := &limited{tape: &tape{}}
	x, err := Open(log, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	mustInitialize(t, x, 4)
	mustSave(t, x, "a", "b")
	page := reserveOne(t, x, "c")

	log.err = fmt.Errorf("%w: the store is full", pageservice.ErrUnavailable)
	if _, err := x.Reserve(ctx, modelSpace, 0, []string{"a", "d"}, false); !errors.Is(err, log.err) {
		t.Fatal(err)
	}
	for name, pages := range map[string]int64{"known": 5, "new": 4} {
		s := modelSpace
		if name == "new" {
			s.Namespace = name
		}
		if _, err := x.Initialize(ctx, s, 0, pageservice.RankOptions{NumPages: pages}); !errors.Is(err, log.err) {
			t.Fatal(name, err)
		}
	}
	mustInitialize(t, x, 4)
	if got := reserveOne(t, x, "a"); got == pageservice.None {
		t.Fatal("a key that is there was refused")
	}
	if c, err := x.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: "c", Page: page}}, nil); err != nil || c.Keys != 1 {
		t.Fatal(c, err)
	}
	if n, err := x.Delete(ctx, modelSpace, []string{"b"}); err != nil || n != 1 {
		t.Fatal(n, err)
	}
	if at, err := x.Locate(ctx, modelSpace, 0, []string{"a", "b", "c", "d"}); err != nil || at[0] < 0 || at[1] >= 0 || at[2] != page || at[3] >= 0 {
		t.Fatal(at, err)
	}
	log.err = nil
	mustSave(t, x, "d")
}

// After another host took the lead, keys are evicted in the order in which they were written, whatever came and
// went in between.
func TestASuccessorEvictsTheOldestKeysFirst(t *testing.T) {
	clock := newClock()
	o := Options{Now: clock.now}
	before, log := lead(t, nil, o, nil)
	mustInitialize(t, before, 20)
	for i := range 50 { // so that entries have been used again, in another order
		mustSave(t, before, fmt.Sprint("key ", i*7%50))
		clock.advance(time.Second)
	}
	x, _ := lead(t, log.recs, o, nil)
	clock.advance(time.Hour)
	mustSave(t, x, "a", "b", "c", "d", "e")
	var want []bool
	for i := 30; i < 50; i++ {
		want = append(want, i >= 35)
	}
	var keys []string
	for i := 30; i < 50; i++ {
		keys = append(keys, fmt.Sprint("key ", i*7%50))
	}
	found, err := x.Exists(ctx, modelSpace, keys)
	if err != nil || !slices.Equal(found, want) {
		t.Fatal(found, err)
	}
	entries, err := x.List(ctx, modelSpace, "", 100)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if e.Idle > time.Hour {
			t.Errorf("%q was used %v ago, and the log was read an hour ago", e.Key, e.Idle)
		}
	}
}

// What is known of a rank that was forgotten does not stay in the log for ever: once its clients have stopped using its pages,
// ranks that are new get pages at once from any host that leads later, and nothing is left of a space without ranks.
func TestForgottenRanksAreForgotten(t *testing.T) {
	clock := newClock()
	o := Options{Now: clock.now}
	o.Options = o.WithDefaults()
	x, log := lead(t, nil, o, nil)
	mustInitialize(t, x, 4)
	other := pageservice.Space{Namespace: "n", Set: "vllm"}
	for _, s := range []pageservice.Space{modelSpace, other} {
		for rank := 1; rank < 3; rank++ {
			if _, err := x.Initialize(ctx, s, rank, pageservice.RankOptions{NumPages: 1}); err != nil {
				t.Fatal(err)
			}
			if err := x.Forget(ctx, s, rank); err != nil {
				t.Fatal(err)
			}
		}
	}
	clock.advance(o.Reserve + o.Quarantine)
	mustSave(t, x, "a")

	follower := replayAll(t, log.recs, o)
	if follower.find(other) != nil || follower.find(modelSpace).closedUntil != 0 {
		t.Error("a host that reads the log still remembers ranks that were forgotten long ago")
	}
	next, _ := lead(t, log.recs, o, nil)
	for _, s := range []pageservice.Space{modelSpace, other} {
		if _, err := next.Initialize(ctx, s, 1, pageservice.RankOptions{NumPages: 1}); err != nil {
			t.Fatal(err)
		}
		if g, err := next.Reserve(ctx, s, 1, []string{"b"}, true); err != nil || g[0].Page == pageservice.None {
			t.Errorf("a new rank of %v gets no page: %v", s, err)
		}
	}
}

// A host whose memory is too small for the log may have to lead. Then the others keep what it forgot, except for keys that a client
// deletes and pages that it gives out.
func TestALeaderWithTooLittleMemoryForgetsForNobodyElse(t *testing.T) {
	clock := newClock()
	o := Options{Now: clock.now, Handover: 5 * time.Second}
	o.Options = o.WithDefaults()
	before, log := lead(t, nil, o, nil)
	var keys []string
	for i := range 1000 {
		keys = append(keys, fmt.Sprintf("key %03d", i))
	}
	mustInitialize(t, before, int64(len(keys)))
	for i := 0; i < len(keys); i += 100 {
		mustSave(t, before, keys[i:i+100]...)
	}

	few := o
	few.MemoryBytes = before.used.Load() * 3 / 4
	small, tape := lead(t, log.recs, few, nil)
	found := func(x *Index, keys []string) (n int) {
		t.Helper()
		there, err := x.Exists(ctx, modelSpace, keys)
		if err != nil {
			t.Fatal(err)
		}
		for _, is := range there {
			if is {
				n++
			}
		}
		return n
	}
	if n := found(small, keys); n == len(keys) {
		t.Fatal("nothing was forgotten")
	}
	next, _ := lead(t, tape.recs, o, nil)
	if n := found(next, keys); n != len(keys) {
		t.Errorf("%d of %d keys are found by a host that has all", n, len(keys))
	}

	clock.advance(time.Hour)
	mustSave(t, small, "new")
	next, _ = lead(t, tape.recs, o, nil)
	if n := found(next, keys); n != len(keys)-1 || found(next, []string{"new"}) != 1 {
		t.Errorf("%d of %d keys are found when one page was given to another", n, len(keys))
	}

	gone := keys[:1]
	if found(small, gone) != 0 {
		t.Fatal("the oldest key was not forgotten")
	}
	if _, err := small.Delete(ctx, modelSpace, gone); err != nil {
		t.Fatal(err)
	}
	if next, _ = lead(t, tape.recs, o, nil); found(next, gone) != 0 {
		t.Error("a key is found that was deleted")
	}
}

// A host that could not lead reads on, and may be able to lead later. Then it gives no page to two.
func TestReplayedAgain(t *testing.T) {
	first, second := pageservice.Space{Set: "sglang/a/0"}, pageservice.Space{Set: "sglang/b/0"}
	x := replayAll(t, [][]byte{
		(&record{kind: rankSet, space: first, numPages: 4}).encode(),
		(&record{kind: reserved, space: first, pages: []uint32{0, 1, 2}, hashes: []uint64{1, 2, 3}}).encode(),
		(&record{kind: rested, space: first, pages: []uint32{0, 1}}).encode(),
		(&record{kind: rankSet, space: second, numPages: 1}).encode(),
		(&record{kind: confirmed, space: second, pages: []uint32{1}, keys: []string{"k"}}).encode(),
	}, Options{})
	if err := x.replayed(); err == nil {
		t.Fatal("a rank has keys in pages that it does not have, and nothing was said")
	}
	for _, rec := range []*record{
		{kind: rankSet, space: second, numPages: 2},
		{kind: confirmed, space: first, pages: []uint32{1, 2}, keys: []string{"k", "l"}},
	} {
		if err := x.replayRecord(rec.encode()); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(x.replayed(), x.Check()); err != nil {
		t.Fatal(err)
	}
}
