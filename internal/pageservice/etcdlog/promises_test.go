package etcdlog

import (
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// TestHostsThatDiffer are the tests of hosts that run with different options, memory, or defects.
func TestHostsThatDiffer(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{})
	for name, test := range map[string]func(*site){
		"what was promised is kept by whoever leads next":           testPromises,
		"what was promised is kept for as long as anybody relies":   testPromisesEnd,
		"hosts lead that agree on the number of ranks":              testWorlds,
		"a host that has forgotten keys leads only if no other can": testPartial,
		"a host yields only as long as others may be able to lead":  testYieldsInVain,
		"two hosts do not yield to each other":                      testYieldToEachOther,
		"a leader that others do not reach makes room":              testUnreached,
		"a host that rests says so and leads if nobody else does":   testRests,
		"a snapshot with which another host disagrees is none":      testDisagreement,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(newSite(t, members))
		})
	}
}

func testPromises(s *site) {
	mine := pageservice.Promises{Lease: 30 * time.Second, Reserve: time.Minute, Quarantine: 10 * time.Second}
	s.o.Promises = mine
	a := s.lead("a")
	b := s.follow("b")
	s.o.Promises.Lease = time.Hour
	long := s.follow("long")
	s.stands("long", 3)
	if err := b.Close(); err != nil {
		s.Fatal(err)
	}
	s.o.Promises = mine
	b = s.follow("again")
	a.die()
	long.leads()
	// Followers that do not know how long that one's clients may use what they were told begin again.
	if err := receive(s, "Start returns", b.started); !errors.Is(err, ErrPromises) {
		s.Fatal(err)
	}
	if err := long.Close(); err != nil {
		s.Fatal(err)
	}
	b = s.start("unaware")
	if err := receive(s, "Start returns", b.started); !errors.Is(err, ErrPromises) {
		s.Fatal(err)
	}
	var err error
	if s.o.Promised, err = Recorded(s.Context(), b.cluster); err != nil || s.o.Promised.Lease != time.Hour || s.o.Promised.Reserve != time.Minute {
		s.Fatal(s.o.Promised, err)
	}
	b = s.lead("aware")
	if now, err := Recorded(s.Context(), b.cluster); err != nil || now != s.o.Promised {
		s.Error(now, err)
	}
}

func testPromisesEnd(s *site) {
	long := pageservice.Promises{Lease: 3 * time.Second, Reserve: time.Second, Quarantine: time.Second}
	s.o.Promises = long
	if err := s.lead("long").Close(); err != nil {
		s.Fatal(err)
	}
	s.o.Promised, s.o.Promises = long, pageservice.Promises{Lease: time.Second, Reserve: time.Second, Quarantine: time.Second}
	began := time.Now()
	b := s.lead("b")
	await(s, "no more than that is noted", func() bool {
		now, err := Recorded(s.Context(), b.cluster)
		return err == nil && now == s.o.Promises
	})
	if took, least := time.Since(began), long.Lease+long.Quarantine+s.ttl; took < least {
		s.Errorf("it was noted after %v, and clients may rely on more for %v", took, least)
	}
}

func testWorlds(s *site) {
	s.o.World = 8
	a := s.lead("a")
	c := s.follow("c")
	s.o.World = 4
	b := s.start("b")
	await(s, "it yields", func() bool { return !b.State().Warm && strings.Contains(b.State().Reason, "4 ranks") })
	if why := b.State().Reason; !strings.Contains(why, "8 ranks") || !strings.Contains(why, "--tp") {
		s.Error(why)
	}
	a.die()
	c.leads()
	for _, h := range []*peer{a, c} { // all others have the other number, or are gone
		if err := h.Close(); err != nil {
			s.Fatal(err)
		}
	}
	b.leads()
	if v := s.stored(); v.promises.World != 4 {
		s.Errorf("%+v", v.promises)
	}
}

func testPartial(s *site) {
	a := s.lead("a")
	b := s.prepare(s.join("b"))
	b.owner.partial = true
	b.run()
	await(s, "b follows", func() bool { return b.State().Partial })
	c := s.follow("c")
	s.stands("c", 2)
	await(s, "it yields", func() bool { return strings.Contains(b.State().Reason, "--pages-memory") })
	a.die()
	c.leads()
	for _, h := range []*peer{a, c} {
		if err := h.Close(); err != nil {
			s.Fatal(err)
		}
	}
	b.leads()
}

func testYieldsInVain(s *site) {
	s.ttl = shortLease
	a := s.lead("a")
	unable := s.join("Unable") // before all others in their order
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() {
		done <- unable.Announce(ctx, func() cluster.State { return cluster.State{Role: string(Following)} })
	}()
	defer func() { cancel(); <-done }()
	b := s.prepare(s.join("b"))
	b.owner.partial = true
	b.run()
	await(s, "it yields", func() bool { return strings.Contains(b.State().Reason, `"Unable"`) })
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	b.leads()
}

func testYieldToEachOther(s *site) {
	s.o.World = 8
	a := s.lead("a")
	partial := s.prepare(s.join("partial"))
	partial.owner.partial = true
	partial.run()
	await(s, "one is partial", func() bool { return partial.State().Partial })
	s.o.World = 4
	differs := s.start("differs")
	await(s, "the other one differs", func() bool { return strings.Contains(differs.State().Reason, "--tp") })
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	partial.leads()
}

func testUnreached(s *site) {
	a := s.lead("a")
	b := s.start("b")
	b.cut.Store(a.leaderOf().term.Revision)
	s.stands("b", 2)
	receive(s, "it gives up", a.Lost())
	if why := a.State().Reason; !strings.Contains(why, "b do not reach it") {
		s.Error(why)
	}
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	b.leads()
}

func testRests(s *site) {
	s.ttl = shortLease
	b := s.lead("b")
	c := s.join("a")
	for c.Rest() < 10*patience {
	}
	a := s.startOn(c)
	await(s, "it says that it rests", func() bool { return !a.State().Warm && strings.Contains(a.State().Reason, cluster.ErrRests.Error()) })
	if err := b.Close(); err != nil {
		s.Fatal(err)
	}
	a.leads()
}

// One of two followers has another state than the leader's log gives, and takes a snapshot: the other one does not begin again from it.
func testDisagreement(s *site) {
	s.named = true
	s.o.SnapshotBytes = 5_000
	a := s.lead("a")
	b := s.prepare(s.join("b"))
	b.owner.did("strange=1")
	b.run()
	c := s.follow("c")
	await(s, "both are listed", func() bool {
		hosts, err := a.cluster.Hosts(s.Context())
		return err == nil && len(hosts) == 3 && hosts[1].Epoch > 0 && hosts[2].Epoch > 0
	})
	a.churn("a snapshot is taken", func() bool { return b.State().checkpoint.index > 0 && c.State().checkpoint.index > 0 })
	await(s, "it is refused", func() bool { return a.State().Conflict != "" })
	if why := a.State().Conflict; !strings.Contains(why, `"b"`) || !strings.Contains(why, `"c"`) {
		s.Error(why)
	}
	await(s, "its file is removed", func() bool {
		files, err := os.ReadDir(a.snapshotDir())
		return err == nil && len(files) == 0
	})
	if v := s.stored(); len(v.refs.Newest) > 0 {
		s.Errorf("%+v", v.refs)
	}
	if _, n := c.owner.counts(); n > 0 {
		s.Error("a host whose state is right began again")
	}
}
