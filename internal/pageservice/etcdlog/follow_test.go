package etcdlog

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// TestHosts are the tests for which one healthy etcd does; each has keys of its own there.
func TestHosts(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{})
	for name, test := range map[string]func(*site){
		"followers apply what the leader writes":                                     testFollow,
		"a large write is whole or not there":                                        testLargeWrite,
		"a closed log is followed at once":                                           testHandOver,
		"start ends when the log is closed":                                          testCloseWhileFollowing,
		"writes of a closed log are refused":                                         testClosed,
		"two appenders in one term":                                                  testTwoAppenders,
		"a stale leader that wakes appends nothing":                                  testStaleLeader,
		"the new leader goes on after what was appended and not applied #3638 #2826": testSequenceReuse,
		"an empty host is not elected and not led by #1920 #3774":                    testEmptyHost,
		"a host that has applied another log begins again":                           testOtherChain,
		"a mark that another cluster has left says nothing of this log":              testMarkOfAnother,
		"newer batches are refused":                                                  testNewerBatch,
		"newer heads are refused":                                                    testNewerHead,
		"a missing head is damage":                                                   testHeadIsMissing,
		"a damaged batch is damage":                                                  testDamagedBatch,
		"a record that the owner refuses keeps the host from leading":                testRefusedRecord,
		"a log that has gone is not begun again by itself":                           testLogIsGone,
		"a damaged log begins anew when an operator says so":                         testStartOverOfADamagedLog,
		"a log that can be read begins anew when an operator says so":                testStartOverWithAReadableLog,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newSite(t, members))
		})
	}
}

func testFollow(s *site) {
	a := s.lead("a")
	b := s.follow("b")
	a.mustWrite("1", "2")
	a.mustWrite("3")
	c := s.follow("c")
	for _, h := range []*peer{b, c} {
		h.applies("1", "2", "3")
		if h.Valid() || h.State().Role != Following {
			s.Errorf("%+v", h.State())
		}
	}
	if !a.Valid() || a.State().Role != Leading {
		s.Errorf("%+v", a.State())
	}
	await(s, "states agree", func() bool {
		x, y := a.State(), b.State()
		return x.Applied == y.Applied && x.Term == y.Term && y.Lag() == 0
	})
}

func testLargeWrite(s *site) {
	a := s.lead("a")
	b := s.follow("b")
	var recs []string
	for i := range 300 {
		recs = append(recs, fmt.Sprintf("%d%s", i, strings.Repeat("x", 4000)))
	}
	a.mustWrite(recs...)
	b.applies(recs...)
	if n := a.State().Applied; n < 5 {
		s.Errorf("1.2 MB are %d batches", n)
	}
	if err := a.write(strings.Repeat("x", groupBytes)); !errors.Is(err, pageservice.ErrInvalid) {
		s.Error("a write that is too large:", err)
	}
	a.mustWrite("last")
	b.applies(append(recs, "last")...)
}

// A graceful stop gives its lease back: the others need not wait until it has run out.
func testHandOver(s *site) {
	s.ttl = time.Minute
	a := s.lead("a")
	b := s.follow("b")
	a.mustWrite("1")
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	b.leads()
	b.mustWrite("2")
	if got := fmt.Sprint(b.owner.all()); got != "[1 2]" {
		s.Error(got)
	}
	if _, n := b.owner.counts(); n != 0 {
		s.Errorf("it began again %d times", n)
	}
}

func testCloseWhileFollowing(s *site) {
	s.lead("a")
	b := s.follow("b")
	if err := b.Close(); err != nil {
		s.Fatal(err)
	}
	if err := receive(s, "Start returns", b.started); !errors.Is(err, pageservice.ErrClosed) {
		s.Error(err)
	}
	if err := b.write("x"); !errors.Is(err, pageservice.ErrClosed) {
		s.Error(err)
	}
	never := New(b.cluster, s.o)
	if err := never.Close(); err != nil {
		s.Error(err)
	}
	if err := never.Start(newOwner().hooks()); !errors.Is(err, pageservice.ErrClosed) {
		s.Error(err)
	}
}

func testClosed(s *site) {
	a := s.lead("a")
	for range 2 {
		if err := a.Close(); err != nil {
			s.Fatal(err)
		}
	}
	if err := a.write("x"); !errors.Is(err, pageservice.ErrClosed) {
		s.Error(err)
	}
	if a.Valid() {
		s.Error("valid")
	}
}

// Should two appenders ever share a term, the head's revision tells them apart: one goes on, the other ends.
func testTwoAppenders(s *site) {
	a := s.lead("a")
	b := s.follow("b")
	led := a.leaderOf()
	v, err := a.view(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	other := &appender{Log: a.Log, term: led.term, head: v.head, seen: v.seen}
	if err := other.append(s.Context(), batch{kind: records, last: true, body: appendFrame(nil, []byte("other"))}, nil); err != nil {
		s.Fatal(err)
	}
	if err := a.write("mine"); !errors.Is(err, pageservice.ErrDemoted) {
		s.Fatal(err)
	}
	receive(s, "the leader knows", a.Lost())
	if a.Valid() {
		s.Error("valid")
	}
	b.applies("other")
	if err := a.Close(); err != nil { // as its owner does
		s.Fatal(err)
	}
	b.leads()
	b.mustWrite("2")
	if got := fmt.Sprint(b.owner.all()); got != "[other 2]" {
		s.Error(got)
	}
}

func testStaleLeader(s *site) {
	a := s.lead("a")
	b := s.follow("b")
	a.mustWrite("1")
	a.die()
	b.leads()
	b.mustWrite("2")
	if err := a.write("3"); !errors.Is(err, pageservice.ErrDemoted) || !errors.Is(err, pageservice.ErrUnavailable) {
		s.Fatal(err)
	}
	receive(s, "the stale leader knows", a.Lost())
	if err := a.write("4"); !errors.Is(err, pageservice.ErrDemoted) {
		s.Fatal(err)
	}
	if st := a.State(); a.Valid() || st.Role != Demoted || st.Reason == "" {
		s.Errorf("%+v", st)
	}
	b.mustWrite("5")
	s.follow("c").applies("1", "2", "5")
}

// Mooncake's new primary went on from what it had applied, although more had been written.
func testSequenceReuse(s *site) {
	a := s.lead("a")
	b := s.start("b")
	gate := make(chan struct{})
	b.owner.mu.Lock() // it applies nothing
	go func() { <-gate; b.owner.mu.Unlock() }()
	for i := range 20 {
		if err := a.write(fmt.Sprint(i)); err != nil {
			s.Error(err)
		}
	}
	a.die()
	close(gate)
	b.leads()
	b.mustWrite("20")
	want := []string{}
	for i := range 21 {
		want = append(want, fmt.Sprint(i))
	}
	b.applies(want...)
	s.follow("c").applies(want...)
}

// Mooncake promoted standbys that had applied nothing and reported no lag. Here one that cannot read the log is no
// candidate, and one that reads it leads with all of it.
func testEmptyHost(s *site) {
	a := s.lead("a")
	a.mustWrite("1")
	b := s.join("b")
	broken := s.prepare(b)
	broken.owner.refuse = "1"
	broken.run()
	await(s, "it is not warm", func() bool { return broken.State().Reason != "" })
	a.die()
	c := s.start("c")
	c.leads()
	c.applies("1")
	if st := broken.State(); st.Warm || st.Role != Following {
		s.Errorf("%+v", st)
	}
}

func testOtherChain(s *site) {
	a := s.lead("a")
	a.mustWrite("1")
	b := s.follow("b")
	// Somebody has put a head of another log in place.
	v, err := a.view(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	right, wrong := v.head, v.head
	wrong.Chain[0]++
	s.put(a.keys.head(), encodeJSON(wrong))
	await(s, "it is not warm", func() bool { return !b.State().Warm && strings.Contains(b.State().Reason, "another batch") })
	receive(s, "the leader knows", a.Lost())
	s.put(a.keys.head(), encodeJSON(right))
	await(s, "it is warm", func() bool { return b.State().Warm })
	b.applies("1")
	if _, n := b.owner.counts(); n == 0 {
		s.Error("it did not begin again")
	}
	if err := a.write("2"); !errors.Is(err, pageservice.ErrDemoted) {
		s.Error("the head was written by somebody else:", err)
	}
}

// The mark is written a little later than the head: a leader that began anew and has left at once leaves the mark of the cluster
// before, perhaps of another log in etcd.
func testMarkOfAnother(s *site) {
	a := s.lead("a")
	a.mustWrite("1")
	a.mustWrite("2")
	v, err := a.view(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	m := mark{stamp: stamp{jsonFormat, a.by}, Cluster: "another", Index: v.head.Index - 1, Chain: chain{1}}
	if err := m.write(a.o.Dir, "a", func() error { return nil }); err != nil {
		s.Fatal(err)
	}
	s.lead("b").applies("1", "2")
}

// notLed checks that no host can lead, and why.
func (s *site) notLed(reason ...string) *peer {
	s.Helper()
	c := s.start("later")
	await(s, "the reason is told", func() bool { return c.State().Reason != "" })
	for _, want := range reason {
		if st := c.State(); st.Warm || st.Role != Following || !strings.Contains(st.Reason, want) {
			s.Errorf("%+v; want a reason with %q", st, want)
		}
	}
	return c
}

func testNewerBatch(s *site) {
	a := s.lead("a")
	a.mustWrite("1")
	value, err := a.fetch(s.Context(), 2, 2)
	if err != nil {
		s.Fatal(err)
	}
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	s.put(a.keys.batch(2), string(asNewer(value[0])))
	s.notLed("newer kv3fs", `host "a"`, "kv3fs test")
}

func testNewerHead(s *site) {
	a := s.lead("a")
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	s.put(a.keys.head(), `{"format":2,"host":"x","version":"9.9"}`)
	s.notLed("newer kv3fs", `"x"`, "9.9")
}

func testHeadIsMissing(s *site) {
	a := s.lead("a")
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	if _, err := s.members.Client().Delete(s.Context(), a.keys.head()); err != nil {
		s.Fatal(err)
	}
	s.notLed("head is missing")
}

func testDamagedBatch(s *site) {
	a := s.lead("a")
	a.mustWrite("1")
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	value, err := a.Log.get(s.Context(), a.keys.batch(2), 0)
	if err != nil {
		s.Fatal(err)
	}
	bad := []byte(string(value.Kvs[0].Value))
	bad[len(bad)-40]++
	s.put(a.keys.batch(2), string(bad))
	s.notLed(a.keys.batch(2), "checksum")
}

func testRefusedRecord(s *site) {
	a := s.lead("a")
	a.mustWrite("1", "2")
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	b := s.prepare(s.join("b"))
	b.owner.refuse = "2"
	b.run()
	await(s, "the reason is told", func() bool { return strings.Contains(b.State().Reason, `record "2" is unknown`) })
	b.owner.mu.Lock()
	b.owner.refuse = ""
	b.owner.mu.Unlock()
	b.leads() // as after a repair
	b.applies("1", "2")
}
