package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// TestLength are the tests of what keeps the log short, and of hosts that start from what that leaves.
func TestLength(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{})
	for name, test := range map[string]func(*site){
		"with followers the log and the files stay short #2971":       testRetention,
		"a cold start reads a snapshot and what comes after it #3561": testColdStart,
		"a snapshot ends where its index says #1777":                  testBoundary,
		"a host that slept through two snapshots begins again":        testSleeper,
		"a damaged snapshot is not used":                              testDamagedSnapshot,
		"a missing snapshot is not used":                              testMissingSnapshot,
		"without a snapshot that can be read nobody leads":            testNoSnapshot,
		"the pointer moves while a host loads":                        testPointerMoves,
		"a damaged proposal is not accepted":                          testBadProposal,
		"a snapshot that etcd names keeps its file":                   testDoubtfulProposal,
		"states that differ are found":                                testOtherState,
		"alone the log is compacted":                                  testCompaction,
		"compaction that cannot read a batch loses nothing":           testCompactionFails,
		"compaction begins with a snapshot where there is one":        testCompactionOfSnapshot,
		"where no follower can take a snapshot the log is compacted":  testRefusingFollowers,
		"a start over with a host that is warm is a new log":          testStartOverWarm,
		"history is given up":                                         testHistory,
		"however much is written snapshots are taken":                 testSteadyLoad,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, members)
			s.named = true
			s.o.SnapshotBytes = 20_000
			test(s)
		})
	}
}

// churn writes until something holds: values of a few names, over and over.
func (h *peer) churn(what string, holds func() bool) {
	h.site.Helper()
	deadline := time.Now().Add(patience)
	for i := 0; !holds(); i++ {
		time.Sleep(2 * time.Millisecond) // mostly it is waited for what is done now and then
		if time.Now().After(deadline) {
			h.site.Fatalf("waited %v in vain: %s; %+v", patience, what, h.State())
		}
		h.mustWrite(fmt.Sprintf("n%d=%d%s", i%10, i, strings.Repeat("v", 1000)))
	}
}

// stored reads what etcd has of the log.
func (s *site) stored() view {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for {
		v, err := s.observer().view(ctx)
		if err == nil {
			return v
		}
		if ctx.Err() != nil {
			s.Fatal(err)
		}
	}
}

// cutOff writes until the beginning of the log was dropped because of two snapshots.
func (h *peer) cutOff() view {
	h.site.Helper()
	var v view
	h.churn("the log is truncated", func() bool {
		var err error
		v, err = h.view(h.site.Context())
		return err == nil && v.lowest > 1
	})
	return v
}

func testRetention(s *site) {
	a := s.lead("a")
	b, c := s.follow("b"), s.follow("c")
	for range 3 {
		at := a.cutOff().lowest
		a.churn("the log is truncated again", func() bool {
			v, err := a.view(s.Context())
			return err == nil && v.lowest > at
		})
	}
	for _, h := range []*peer{b, c} {
		h.applies(a.owner.all()...)
		if _, n := h.owner.counts(); n != 0 {
			s.Errorf("%s began again %d times", h.by.Host, n)
		}
	}
	v := s.stored()
	if bytes := (v.head.Index - v.lowest) * 1000; bytes > 20*uint64(s.o.SnapshotBytes) {
		s.Errorf("batches %d to %d are there", v.lowest, v.head.Index)
	}
	await(s, "old snapshots are removed", func() bool {
		files, err := os.ReadDir(a.snapshotDir())
		return err == nil && len(files) <= keptSnapshots+1 // the next one may be under way
	})
}

func testColdStart(s *site) {
	a := s.lead("a")
	s.follow("b")
	a.cutOff()
	c := s.follow("c")
	c.applies(a.owner.all()...)
	if n, _ := c.owner.counts(); uint64(n) >= a.State().Applied {
		s.Errorf("it was given %d records, and all the log has are %d", n, a.State().Applied)
	}
	a.die()
	receive(s, "the old leader knows", a.Lost())
}

// Without names each record counts: one too many or too few at the end of a snapshot would show.
func testBoundary(s *site) {
	s.named = false
	a := s.lead("a")
	b := s.follow("b")
	a.cutOff()
	c := s.follow("c")
	want := a.owner.all()
	b.applies(want...)
	c.applies(want...)
	a.die()
	for _, h := range []*peer{b, c} {
		if h.State().Role == Leading {
			h.mustWrite("after")
		}
	}
}

func testSleeper(s *site) {
	s.o.History = 100 * time.Millisecond
	a := s.lead("a")
	s.follow("b")
	c := s.follow("c")
	a.mustWrite("n1=first")
	c.applies("n1=first")
	c.owner.mu.Lock()
	a.mustWrite("n1=second") // it stands in this one
	at := a.cutOff().lowest
	a.churn("there are newer ones", func() bool { v, err := a.view(s.Context()); return err == nil && v.lowest > at })
	a.churn("etcd has forgotten what was dropped", func() bool {
		_, err := a.Log.get(s.Context(), a.keys.batch(2), 1)
		return err != nil && strings.Contains(err.Error(), "compacted")
	})
	c.owner.mu.Unlock()
	c.applies(a.owner.all()...)
	if _, n := c.owner.counts(); n == 0 {
		s.Error("it did not begin again")
	}
}

// file returns the path of a snapshot.
func (s *site) file(r reference) string { return filepath.Join(s.dir, "snapshots", r.File) }

// frozen returns a log with two snapshots, which no host uses any more, and the state that it describes.
func (s *site) frozen() (v view, state []string) {
	s.Helper()
	a := s.lead("a")
	b := s.follow("b")
	a.cutOff()
	if err := b.Close(); err != nil {
		s.Fatal(err)
	}
	state = a.owner.all()
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	if v = s.stored(); len(v.usable()) != 2 || v.needsNone() {
		s.Fatalf("%+v", v)
	}
	return v, state
}

func testDamagedSnapshot(s *site) {
	v, state := s.frozen()
	path := s.file(v.usable()[0])
	content, err := os.ReadFile(path)
	if err != nil {
		s.Fatal(err)
	}
	content[len(content)/2]++
	if err := os.WriteFile(path, content, 0o600); err != nil {
		s.Fatal(err)
	}
	c := s.lead("c")
	c.applies(state...)
	if _, n := c.owner.counts(); n == 0 {
		s.Error("nothing was wrong")
	}
}

func testMissingSnapshot(s *site) {
	v, state := s.frozen()
	if err := os.Remove(s.file(v.usable()[0])); err != nil {
		s.Fatal(err)
	}
	s.lead("c").applies(state...)
}

func testNoSnapshot(s *site) {
	v, state := s.frozen()
	hidden := s.file(v.usable()[0])
	if err := os.Rename(hidden, hidden+".away"); err != nil {
		s.Fatal(err)
	}
	if err := os.Remove(s.file(v.usable()[1])); err != nil {
		s.Fatal(err)
	}
	c := s.notLed("no snapshot of what was before can be used", "--pages-start-over", v.usable()[0].File)
	if err := os.Rename(hidden+".away", hidden); err != nil {
		s.Fatal(err)
	}
	c.leads()
	c.applies(state...)
}

func testPointerMoves(s *site) {
	a := s.lead("a")
	b := s.follow("b")
	v := a.cutOff()
	// It knows a pointer, and the files go before it opens them.
	c := s.prepare(s.join("c"))
	f := newFollower(c.Log)
	c.Log.owner = c.owner.hooks()
	a.churn("both snapshots are replaced", func() bool {
		now, err := a.view(s.Context())
		return err == nil && now.lowest > v.usable()[0].Index+1
	})
	if err := f.load(s.Context(), v); err == nil {
		s.Error("a snapshot that has gone was loaded")
	}
	if _, err := f.catchUp(s.Context()); err != nil {
		s.Fatal(err)
	}
	b.applies(a.owner.all()...)
	c.applies(a.owner.all()...)
}

func testBadProposal(s *site) {
	a := s.lead("a")
	s.follow("b")
	v := a.cutOff()
	for i, r := range []reference{
		{writer: writer{"x", "test"}, Index: v.head.Index, Chain: v.head.Chain, File: "not-there", Bytes: 1},
		{writer: writer{"x", "test"}, Index: v.head.Index + 1_000_000, File: v.usable()[0].File, Bytes: v.usable()[0].Bytes},
		{writer: writer{"x", "test"}, Index: v.head.Index, Chain: chain{1}, File: v.usable()[0].File, Bytes: v.usable()[0].Bytes},
	} {
		key := a.keys.proposal(fmt.Sprintf("x%d", i))
		s.put(key, encodeJSON(proposal{stamp{jsonFormat, writer{"x", "test"}}, r}))
		await(s, "it is refused", func() bool {
			answer, err := a.Log.get(s.Context(), key, 0)
			return err == nil && len(answer.Kvs) == 0
		})
	}
	for _, r := range s.stored().refs.Newest {
		if r.Host == "x" {
			s.Errorf("%+v", r)
		}
	}
}

// A leader that did not hear that a snapshot was accepted, or was replaced by one that has accepted it, does not remove its file.
func testDoubtfulProposal(s *site) {
	a := s.lead("a")
	s.follow("b")
	v := a.cutOff()
	r := v.usable()[0]
	judge := func(r reference) {
		key := s.prefix + "/doubtful" // where the leader itself does not look
		s.put(key, encodeJSON(proposal{stamp{jsonFormat, a.by}, r}))
		answer, err := a.Log.get(s.Context(), key, 0)
		if err != nil {
			s.Fatal(err)
		}
		kv := answer.Kvs[0]
		k := &lookout{leader: a.leaderOf(), known: true, waiting: map[int64]time.Time{kv.ModRevision: {}}} // for long
		if err := k.judge(s.Context(), kv); err == nil {
			s.Error("it is accepted again")
		}
		if _, err := os.Stat(filepath.Join(a.snapshotDir(), r.File)); err != nil {
			s.Error(err)
		}
	}
	judge(r)
	a.die()
	r.Chain = chain{1}
	judge(r)
}

// A host whose state is another one at the same place begins again, and does not lead before.
func testOtherState(s *site) {
	a := s.lead("a")
	s.follow("b")
	c := s.prepare(s.join("c"))
	c.owner.did("strange=1")
	c.unlisted = true // else there would be no snapshot
	c.run()
	await(s, "c is warm", func() bool { return c.State().Warm })
	a.churn("it begins again", func() bool { _, n := c.owner.counts(); return n > 0 })
	await(s, "c is warm", func() bool { return c.State().Warm })
	c.applies(a.owner.all()...)
}

// size returns how many bytes of batches there are.
func (s *site) size() (bytes int) {
	s.Helper()
	answer, err := s.observer().cluster.Client().Get(s.Context(), keys{s.prefix}.batch(0), clientv3.WithRange(keys{s.prefix}.batch(1<<63)))
	if err != nil {
		s.Fatal(err)
	}
	for _, kv := range answer.Kvs {
		bytes += len(kv.Value)
	}
	return bytes
}

func testCompaction(s *site) {
	a := s.lead("a")
	a.mustWrite("oldest=1")
	for round := range 2 {
		before := s.stored().head.Whole
		a.churn("the log is compacted", func() bool {
			v, err := a.view(s.Context())
			return err == nil && v.lowest > before+20
		})
		for i := range 300 {
			a.mustWrite(fmt.Sprintf("n0=%0400d", i))
		}
		live := a.owner.hooks().LiveBytes()
		if size := int64(s.size()); size > 2*live+3*s.o.SnapshotBytes {
			s.Errorf("%d bytes are there, and %d are needed", size, live)
		}
		state := a.owner.all()
		if !slices.Contains(state, "oldest=1") {
			s.Fatal("the test has lost it")
		}
		if err := a.Close(); err != nil {
			s.Fatal(err)
		}
		if v := s.stored(); !v.needsNone() || len(v.refs.Newest) > 0 || v.lowest == 1 {
			s.Errorf("%+v", v)
		}
		a = s.lead(fmt.Sprint("next", round))
		a.applies(state...)
		if _, n := a.owner.counts(); n > 0 {
			s.Error("it began again")
		}
	}
}

// testCompactionFails has a batch be away while compaction reads, in several answers, those before it.
func testCompactionFails(s *site) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a := s.lead("a")
	for i := range 2 * fetchBatches {
		a.mustWrite(fmt.Sprintf("oldest%d=1", i))
	}
	v, err := a.view(ctx)
	if err != nil {
		s.Fatal(err)
	}
	away := a.keys.batch(v.head.Index)
	was, err := a.cluster.Client().Get(ctx, away)
	if err != nil || len(was.Kvs) != 1 {
		s.Fatal(was, err)
	}
	if _, err := a.cluster.Client().Delete(ctx, away); err != nil {
		s.Fatal(err)
	}
	a.churn("compaction was due for long", func() bool { return int64(s.size()) > 5*s.o.SnapshotBytes })
	s.put(away, string(was.Kvs[0].Value))
	a.churn("the log is compacted", func() bool {
		now, err := a.view(ctx)
		return err == nil && now.lowest > v.head.Index
	})
	state := a.owner.all()
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	s.lead("next").applies(state...)
}

func testCompactionOfSnapshot(s *site) {
	v, state := s.frozen()
	a := s.lead("alone")
	a.applies(state...)
	a.churn("the snapshots are needless", func() bool {
		now, err := a.view(s.Context())
		return err == nil && now.needsNone() && now.head.Whole > v.usable()[0].Index
	})
	state = a.owner.all()
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "snapshots")); err != nil {
		s.Fatal(err)
	}
	s.lead("again").applies(state...)
}

func testRefusingFollowers(s *site) {
	s.o.Period = 10 * time.Millisecond
	a := s.lead("a")
	b := s.follow("b")
	// Where its snapshots go there is a file.
	if err := os.MkdirAll(s.dir, 0o700); err != nil {
		s.Fatal(err)
	}
	if err := os.WriteFile(a.snapshotDir(), nil, 0o600); err != nil && !errors.Is(err, os.ErrExist) {
		s.Fatal(err)
	}
	a.churn("the log is compacted", func() bool { v, err := a.view(s.Context()); return err == nil && v.head.Whole > 20 })
	b.applies(a.owner.all()...)
}

// Writers that never leave the queue empty keep no follower from being asked for snapshots.
func testSteadyLoad(s *site) {
	a := s.lead("a")
	s.follow("b")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	for w := range 4 {
		wg.Go(func() {
			var waits []func(context.Context) error
			for i := 0; ; i++ {
				waits = append(waits, a.begin(fmt.Sprintf("n%d=%d%s", w, i, strings.Repeat("v", 50_000))))
				if len(waits) == 8 { // of all writers, more than are written at once
					if err := waitFor(waits[0]); err != nil {
						s.Error(err)
						return
					}
					waits = waits[1:]
				}
				select {
				case <-stop:
					return
				default:
				}
			}
		})
	}
	await(s, "the log is truncated", func() bool {
		v, err := a.view(s.Context())
		return err == nil && v.lowest > 1
	})
	if v := s.stored(); v.head.Whole > 1 || len(v.refs.Newest) == 0 {
		s.Errorf("it was compacted, although there is a follower: %+v", v)
	}
}

func testHistory(s *site) {
	s.o.History = 100 * time.Millisecond
	a := s.lead("a")
	a.churn("etcd gives up the past", func() bool {
		_, err := a.Log.get(s.Context(), a.keys.head(), 1)
		return err != nil && strings.Contains(err.Error(), "compacted")
	})
}

// A host that followed when an operator has decided to begin anew leads, and the snapshots without which nobody could read the log are of the
// cluster before.
func testStartOverWarm(s *site) {
	a := s.prepare(s.join("a"))
	a.unlisted = true // else nothing is begun anew while it leads
	a.run()
	a.leads()
	b := s.follow("b")
	a.cutOff()
	s.startOver(s.join("operator"))
	receive(s, "the leader gives up", a.Lost())
	if err := a.Close(); err != nil { // as its owner does
		s.Fatal(err)
	}
	b.leads()
	if b.owner.told() == "" {
		s.Error("it was not told that something is missing")
	}
	b.mustWrite("new=1")
	c := s.follow("c")
	c.applies("new=1")
	if err := b.Close(); err != nil {
		s.Fatal(err)
	}
	c.leads()
	c.applies("new=1")
}
