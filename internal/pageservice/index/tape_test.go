package index

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	testseed "github.com/kv3fs/kv3fs/internal/test/seed"
)

// tape is a pageservice.Log in memory that keeps every record. While it starts, play decides what
// its owner is told: by default all that was recorded before.
type tape struct {
	recs  [][]byte
	owner pageservice.LogOwner
	play  func(owner pageservice.LogOwner) error

	mu     sync.Mutex
	added  sync.Cond // of mu
	queue  []func()  // no bound: Append must return at once, its caller holds locks that writes need
	ended  chan struct{}
	closed bool
}

func (l *tape) SizeBytes() int64 { return 0 }

func (l *tape) Start(owner pageservice.LogOwner) error {
	l.owner, l.ended = owner, make(chan struct{})
	l.added.L = &l.mu
	go l.write()
	if l.play == nil {
		l.play = func(pageservice.LogOwner) error { return l.replay(0, len(l.recs)) }
	}
	if err := l.play(owner); err != nil {
		return err
	}
	return owner.Replayed()
}

// write does what is queued, in order, until Close.
func (l *tape) write() {
	defer close(l.ended)
	l.mu.Lock()
	defer l.mu.Unlock()
	for {
		for len(l.queue) == 0 && !l.closed {
			l.added.Wait()
		}
		if len(l.queue) == 0 {
			return
		}
		next := l.queue[0]
		l.queue = l.queue[1:]
		l.mu.Unlock()
		next()
		l.mu.Lock()
	}
}

// push queues what write does next.
func (l *tape) push(next func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, next)
	l.added.Signal()
}

// replay passes some records to the owner.
func (l *tape) replay(from, to int) error {
	for _, rec := range l.recs[from:to] {
		if err := l.owner.Replay(rec); err != nil {
			return err
		}
	}
	return nil
}

func (l *tape) Append(done func(error), recs ...[]byte) (wait func(context.Context) error) {
	finished := make(chan struct{})
	l.push(func() {
		for _, rec := range recs {
			l.recs = append(l.recs, slices.Clone(rec))
		}
		done(nil)
		close(finished)
	})
	return func(context.Context) error { <-finished; return nil }
}

func (l *tape) Close() error {
	l.mu.Lock()
	l.closed = true
	l.added.Signal()
	l.mu.Unlock()
	<-l.ended
	return nil
}

// compact does what compaction does with the oldest records.
func (l *tape) compact(n int) {
	finished := make(chan struct{})
	l.push(func() {
		for _, rec := range slices.Clone(l.recs[:min(len(l.recs), n)]) {
			l.recs = append(l.recs[1:], l.owner.Keep(rec)...)
		}
		close(finished)
	})
	<-finished
}

// manual is a clock that only tests move.
type manual struct{ at atomic.Int64 }

func newClock() *manual                   { return &manual{} }
func (c *manual) now() time.Time          { return time.Unix(1_800_000_000, c.at.Load()) }
func (c *manual) advance(d time.Duration) { c.at.Add(int64(d)) }

// history makes a tape of what an index wrote while engines and operators used it at random.
func history(t *testing.T, rng *rand.Rand, steps int) *tape {
	t.Helper()
	log, o := &tape{}, Options{}
	clock := newClock()
	o.Now = clock.now
	x, err := Open(log, o)
	if err != nil {
		t.Fatal(err)
	}
	spaces := []pageservice.Space{{Set: "vllm"}, {Namespace: "n", Set: "vllm"}, {Set: "sglang/kv/0"}}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, s := range spaces {
		for rank := range 2 {
			_, err := x.Initialize(ctx, s, rank, pageservice.RankOptions{NumPages: 200})
			must(err)
		}
	}
	for range steps {
		s, rank := spaces[rng.IntN(len(spaces))], rng.IntN(2)
		var keys []string
		for range 1 + rng.IntN(20) {
			keys = append(keys, fmt.Sprintf("key %d", rng.IntN(400)))
		}
		switch n := rng.IntN(40); {
		case n < 30:
			grants, err := x.Reserve(ctx, s, rank, keys, false)
			must(err)
			var written []pageservice.Placed
			var release []int64
			for i, g := range grants {
				switch {
				case g.Page == pageservice.None || g.Present:
				case rng.IntN(10) == 0:
					release = append(release, g.Page)
				case rng.IntN(10) > 0:
					written = append(written, pageservice.Placed{Key: keys[i], Page: g.Page})
				}
			}
			_, err = x.Confirm(ctx, s, rank, written, release)
			must(err)
		case n < 33:
			_, err := x.Delete(ctx, s, keys)
			must(err)
		case n < 36:
			_, err := x.Evict(ctx, s, rng.IntN(20))
			must(err)
		case n < 37:
			must(x.Clear(ctx, s))
		case n < 38:
			must(x.Forget(ctx, s, rank))
			fallthrough
		case n < 39:
			_, err := x.Initialize(ctx, s, rank, pageservice.RankOptions{NumPages: int64(200 + rng.IntN(2))})
			must(err)
		default: // as compaction does
			log.compact(rng.IntN(20))
		}
		clock.advance(time.Duration(rng.IntN(30)) * time.Second)
	}
	must(x.Close())
	return log
}

// describe says what an index knows, apart from how it keeps it.
func describe(x *Index) (all []string) {
	for _, s := range x.all() {
		if len(s.ranks) > 0 || s.closedUntil > 0 {
			all = append(all, fmt.Sprintf("%v: closed until %d, %d keys, %d complete", s.name, s.closedUntil, s.byKey.len, s.nComplete))
		}
		for _, id := range slices.Sorted(maps.Keys(s.ranks)) {
			r := s.ranks[id]
			all = append(all, fmt.Sprintf("%v: rank %d of %d pages, %d free, stale %t, closed until %d", s.name, id, r.numPages, r.numFree(), r.stale, r.closedUntil))
			for page, o := range r.owner {
				if h := r.holdOf(uint32(page)); h != nil {
					all = append(all, fmt.Sprintf("%v: rank %d page %d: %+v", s.name, id, page, *h))
				} else if o != 0 {
					e := s.entries.at(o - 1)
					all = append(all, fmt.Sprintf("%v: rank %d page %d: %q, leased until %d", s.name, id, page, e.key, e.leaseUntil.Load()))
				}
			}
		}
	}
	return all
}

func mustBeEqual(t *testing.T, one, other *Index) {
	t.Helper()
	a, b := describe(one), describe(other)
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			t.Fatalf("they differ: %q, %q", a[min(i, len(a)):min(i+1, len(a))], b[min(i, len(b)):min(i+1, len(b))])
		}
	}
}

// A host that begins with a snapshot and a host that has read everything are equal: now, and whatever
// comes.
func TestSnapshotIsAsGoodAsTheWholeLog(t *testing.T) {
	rng := rand.New(rand.NewPCG(testseed.New(t), 1))
	for range 20 {
		log := history(t, rng, 30+rng.IntN(200))
		all, err := Open(&tape{recs: slices.Clone(log.recs)}, Options{Now: newClock().now})
		if err != nil {
			t.Fatal(err)
		}
		at := rng.IntN(len(log.recs) + 1)
		var hash, snapshotHash uint64
		l := &tape{recs: slices.Clone(log.recs)}
		l.play = func(owner pageservice.LogOwner) error {
			for _, cut := range []int{at, rng.IntN(len(log.recs) + 1), at} { // each time from the beginning
				owner.Reset()
				if err := l.replay(0, cut); err != nil {
					return err
				}
			}
			hash = owner.StateHash()
			var snapshot [][]byte
			if err := owner.Snapshot(func(rec []byte) error {
				if len(rec) > pageservice.SnapshotRecordBytes {
					t.Errorf("a record of %d bytes", len(rec))
				}
				snapshot = append(snapshot, rec)
				return nil
			}); err != nil {
				return err
			}
			owner.Reset()
			for _, rec := range snapshot {
				if err := owner.Replay(rec); err != nil {
					return err
				}
			}
			snapshotHash = owner.StateHash()
			return l.replay(at, len(l.recs))
		}
		some, err := Open(l, Options{Now: newClock().now})
		if err != nil {
			t.Fatal(err)
		}
		if hash != snapshotHash {
			t.Fatalf("after %d of %d records the hash is %#x, and %#x from a snapshot", at, len(log.recs), hash, snapshotHash)
		}
		mustBeEqual(t, all, some)
		for _, x := range []*Index{all, some} {
			if err := x.Check(); err != nil {
				t.Fatal(err)
			}
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// Nobody knows what clients were told until another host took the lead. So what a client may use is
// protected from the end of the log on, however long ago the host began to read it.
func TestTimesCountFromTheEndOfTheLog(t *testing.T) {
	log := &tape{}
	x, err := Open(log, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := x.Initialize(ctx, modelSpace, 0, pageservice.RankOptions{NumPages: 3}); err != nil {
		t.Fatal(err)
	}
	save := func(x *Index, keys []string) { // the first is only reserved, the last is deleted again
		grants, err := x.Reserve(ctx, modelSpace, 0, keys, true)
		if err != nil || grants[0].Page == pageservice.None {
			t.Fatal(grants, err)
		}
		for i, key := range keys[1:] {
			if _, err := x.Confirm(ctx, modelSpace, 0, []pageservice.Placed{{Key: key, Page: grants[1+i].Page}}, nil); err != nil {
				t.Fatal(err)
			}
		}
	}
	save(x, []string{"a", "b", "c"})
	if _, err := x.Delete(ctx, modelSpace, []string{"c"}); err != nil {
		t.Fatal(err)
	}
	if err := x.Close(); err != nil {
		t.Fatal(err)
	}

	clock := newClock()
	follower := &tape{recs: log.recs}
	follower.play = func(owner pageservice.LogOwner) error {
		defer clock.advance(time.Hour)
		return follower.replay(0, len(follower.recs))
	}
	o := Options{Now: clock.now}
	o.Options = o.WithDefaults()
	if x, err = Open(follower, o); err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	clock.advance(o.Reserve + o.Quarantine - 1)
	grants, err := x.Reserve(ctx, modelSpace, 0, []string{"d", "e", "f"}, false)
	if err != nil || grants[0].Page != pageservice.None {
		t.Fatal("given out while a client may use it:", grants, err)
	}
	clock.advance(1)
	save(x, []string{"d", "e", "f"})
}

// After Reset nothing is left, not even in the sums.
func TestResetLeavesNothing(t *testing.T) {
	log := history(t, rand.New(rand.NewPCG(testseed.New(t), 2)), 100)
	fresh, err := Open(&tape{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer fresh.Close()
	var x *Index
	l := &tape{recs: log.recs}
	l.play = func(owner pageservice.LogOwner) error {
		empty := owner.StateHash()
		if err := l.replay(0, len(l.recs)); err != nil {
			return err
		}
		if owner.StateHash() == empty || owner.LiveBytes() == 0 {
			t.Error("nothing was read")
		}
		owner.Reset()
		if owner.StateHash() != empty {
			t.Error("the state is not that of an empty log")
		}
		return nil
	}
	if x, err = Open(l, Options{}); err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	mustBeEqual(t, fresh, x)
	for _, n := range []int64{x.used.Load(), x.frames.Load(), x.liveBytes.Load()} {
		if n != 0 {
			t.Errorf("%d bytes of memory are counted, %d of spaces and ranks, and %d of the log", x.used.Load(), x.frames.Load(), x.liveBytes.Load())
		}
	}
}

// A host whose memory is too small for the log says so, since it has not what the others have; after Reset
// it may be large enough.
func TestWholeSaysWhetherKeysWereForgotten(t *testing.T) {
	log := history(t, rand.New(rand.NewPCG(testseed.New(t), 3)), 200)
	for _, c := range []struct {
		memoryBytes int64
		whole       bool
	}{{0, true}, {64 << 10, false}} {
		l := &tape{recs: slices.Clone(log.recs)}
		l.play = func(owner pageservice.LogOwner) error {
			if err := l.replay(0, len(l.recs)); err != nil {
				return err
			}
			if owner.Whole() != c.whole {
				t.Errorf("with %d bytes: whole %t", c.memoryBytes, owner.Whole())
			}
			owner.Reset()
			if !owner.Whole() {
				t.Error("after Reset it is not whole")
			}
			return l.replay(0, len(l.recs))
		}
		o := Options{}
		o.MemoryBytes = c.memoryBytes
		x, err := Open(l, o)
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(x.Check(), x.Close()); err != nil {
			t.Fatal(err)
		}
	}
}
