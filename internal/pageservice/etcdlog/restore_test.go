package etcdlog

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// marked waits until the mark is that of the newest batch.
func (h *peer) marked() {
	h.site.Helper()
	await(h.site, "the mark is written", func() bool {
		m, err := readMark(h.site.dir)
		return err == nil && m.Index == h.State().Applied
	})
}

// startOver is what an operator's --pages-start-over does on one host.
func (s *site) startOver(c *cluster.Cluster) {
	s.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.StartOver(ctx, dataID, "all were told to begin anew"); err != nil {
		s.Fatal(err)
	}
}

func TestRestoredEtcd(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{})
	s := newSite(t, members)
	a := s.lead("a")
	a.mustWrite("1")
	backup := members.Backup()
	await(t, "it leads again, or still", func() bool { return a.write("2") == nil })
	a.marked()
	b := s.follow("b")
	members.Restore(backup)

	// A follower that runs finds out; the leader appends nothing to a log that is not its own.
	await(t, "the follower is not warm", func() bool { return !b.State().Warm })
	await(t, "it says why", func() bool { return strings.Contains(b.State().Reason, "--pages-start-over") })
	await(t, "the leader, who writes nothing, finds out", func() bool { return a.State().Role != Leading })
	await(t, "the leader is none", func() bool { return a.write("3") != nil && a.State().Role != Leading })
	if err := a.Close(); err != nil {
		t.Error(err)
	}
	await(t, "the follower does not lead", func() bool { return strings.Contains(b.State().Reason, "--pages-start-over") })
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if err := receive(t, "Start returns", b.started); err == nil {
		t.Fatal("it has led")
	}

	// One that starts later finds out by the mark.
	c := s.start("c")
	await(t, "it does not lead", func() bool { return strings.Contains(c.State().Reason, "--pages-start-over") })
	if st := c.State(); st.Role == Leading || !strings.Contains(st.Reason, "ends with batch") {
		t.Errorf("%+v", st)
	}

	// Starting over on one host is enough for all.
	d := s.join("d")
	s.startOver(d)
	over := s.startOn(d)
	first := c
	await(t, "one of them leads", func() bool {
		for _, h := range []*peer{c, over} {
			if h.State().Role == Leading {
				first = h
				return true
			}
		}
		return false
	})
	if first.owner.told() == "" {
		t.Error("it was not told that something is missing")
	}
	if got := first.owner.all(); len(got) > 0 {
		t.Error(got)
	}
	if at := first.State().Applied; at <= 3 {
		t.Errorf("indices come again: %d", at)
	}
	first.mustWrite("anew")
	first.marked()
	for _, h := range []*peer{c, over} {
		if err := h.Close(); err != nil {
			t.Fatal(err)
		}
	}
	next := s.lead("e")
	next.applies("anew")
	if told := next.owner.told(); told != "" {
		t.Error(told)
	}
}

func TestEmptiedEtcd(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{})
	s := newSite(t, members)
	a := s.lead("a")
	a.mustWrite("1", "2")
	a.marked()
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	at := a.State().Applied
	members.Wipe()

	// The prefix is nobody's, which cluster.Identify tells a host that has been there before.
	c, err := cluster.Open(t.Context(), cluster.Config{Endpoints: members.Endpoints(), Prefix: s.prefix, HostID: "b", Address: "127.0.0.1:1", LeaseTTL: s.ttl})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := c.Identify(t.Context(), dataID, true); !errors.Is(err, cluster.ErrEmptied) {
		t.Fatal(err)
	}
	s.startOver(c)
	b := s.startOn(c)
	b.leads()
	if b.owner.told() == "" {
		t.Error("it was not told that something is missing")
	}
	if got := b.State().Applied; got <= at {
		t.Errorf("indices come again: %d after %d", got, at)
	}

	// Until it has written that it forgot everything, the next one is told, too.
	b.die()
	d := s.lead("d")
	if d.owner.told() == "" {
		t.Error("the next one was not told that something is missing")
	}
	d.mustWrite()
	d.mustWrite("3")
	d.die()
	e := s.lead("e")
	if told := e.owner.told(); told != "" {
		t.Error(told)
	}
	e.applies("3")
}

// The first leader of a cluster that begins after another index is told that something is missing, and so is the next one
// until that is written down.
func TestBeginsAfterAnotherIndex(t *testing.T) {
	s := newSite(t, etcd.Start(t, etcd.Options{Members: 1}))
	c := s.join("a")
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := c.StartOver(ctx, dataID, "host x had an index"); err != nil {
		t.Fatal(err)
	}
	for _, start := range []func() *peer{func() *peer { return s.startOn(c) }, func() *peer { return s.start("b") }} {
		h := start()
		h.leads()
		if told := h.owner.told(); !strings.Contains(told, "host x had an index") {
			t.Errorf("told %q", told)
		}
		h.die()
	}
	d := s.lead("d")
	d.mustWrite()
	d.mustWrite("1")
	d.marked()
	d.die()
	e := s.lead("e")
	if told := e.owner.told(); told != "" {
		t.Error(told)
	}
	e.applies("1")
}

// Only the log has gone, not the record of whose the prefix is.
func testLogIsGone(s *site) {
	a := s.lead("a")
	a.mustWrite("1")
	a.marked()
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	for _, key := range []string{a.keys.head(), a.keys.batch(1), a.keys.batch(2)} {
		if _, err := s.members.Client().Delete(s.Context(), key); err != nil {
			s.Fatal(err)
		}
	}
	b := s.start("b")
	await(s, "it does not lead", func() bool { return strings.Contains(b.State().Reason, "--pages-start-over") })
}

// A log that cannot be read begins anew when an operator says so, and followers forget with it.
func testStartOverOfADamagedLog(s *site) {
	a := s.prepare(s.join("a"))
	a.unlisted = true // else nothing is begun anew while it leads
	a.run()
	a.leads()
	a.mustWrite("1")
	a.mustWrite("2")
	follower := s.follow("f")
	follower.applies("1", "2")
	a.marked()
	s.put(a.keys.batch(2), "damaged")
	b := s.join("b")
	s.startOver(b)
	over := s.startOn(b)
	await(s, "it is ready to lead", func() bool { return over.State().Warm })
	if err := follower.Close(); err != nil { // it would lead first, with everything
		s.Fatal(err)
	}
	if err := a.Close(); err != nil {
		s.Fatal(err)
	}
	over.leads()
	if over.owner.told() == "" || len(over.owner.all()) > 0 {
		s.Errorf("%q, %q", over.owner.told(), over.owner.all())
	}
	over.mustWrite("3")
	s.follow("g").applies("3")
}

// What one host was told to begin anew, all know, whoever was started when.
func testStartOverWithAReadableLog(s *site) {
	a := s.prepare(s.join("a"))
	a.unlisted = true // else nothing is begun anew while it leads
	a.run()
	a.leads()
	b := s.follow("b")
	a.mustWrite("1")
	a.marked()
	s.startOver(s.join("operator"))
	receive(s, "the leader gives up", a.Lost())
	if why := a.State().Reason; !strings.Contains(why, "begin anew") {
		s.Error(why)
	}
	if err := a.Close(); err != nil { // as its owner does
		s.Fatal(err)
	}
	b.leads()
	if b.owner.told() == "" {
		s.Error("it was not told that something is missing")
	}
	if got := b.owner.all(); len(got) > 0 {
		s.Error(got)
	}
	b.mustWrite("forgotten")
	b.marked()
	b.die()
	c := s.lead("c")
	if told := c.owner.told(); told != "" {
		s.Error(told)
	}
	c.applies("forgotten")
}
