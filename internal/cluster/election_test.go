package cluster

import (
	"context"
	"errors"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// shortLease is one that tests wait for.
const shortLease = 5 * time.Second

// All of these use one etcd, with prefixes of their own.
func TestElections(t *testing.T) {
	t.Parallel()
	m := etcd.Start(t, etcd.Options{})
	for _, test := range []struct {
		name string
		run  func(*testing.T, *etcd.Members)
	}{
		{"Order", testOrder},
		{"Killed", testKilled},
		{"Paused", testPaused},
		{"KeyDeleted", testKeyDeleted},
		{"Revoked", testRevoked},
		{"GivesUp", testGivesUp},
		{"Closed", testClosed},
		{"Rest", testRest},
		{"Hosts", testHosts},
		{"Identity", testIdentity},
		{"IdentityRaces", testIdentityRaces},
		{"StartOverWhileLed", testStartOverWhileLed},
		{"Space", testSpace},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel() // most of the time they wait for leases
			test.run(t, m)
		})
	}
}

// Candidates lead in the order in which they came, one at a time, and know whether they do.
func testOrder(t *testing.T, m *etcd.Members) {
	var hosts []*Cluster
	for n := range 3 {
		hosts = append(hosts, join(t, configOf(t, m, hostName(n))))
	}
	first := elect(t, hosts[0])
	if !first.Valid() || isLost(first) {
		t.Errorf("just elected: valid %v, lost: %v", first.Valid(), first.Reason())
	}
	second := stand(t, hosts[1])
	third := stand(t, hosts[2])
	if err := first.Resign(background(t)); err != nil {
		t.Error(err)
	}
	if first.Valid() || !errors.Is(first.Reason(), ErrLost) {
		t.Error("still leads after it resigned")
	}
	next := second.wins(t)
	if next.Revision <= first.Revision {
		t.Errorf("term %d after %d", next.Revision, first.Revision)
	}
	if fenced(t, hosts[0], first) {
		t.Error("wrote after it resigned")
	}
	if !fenced(t, hosts[1], next) {
		t.Error("the leader cannot write")
	}
	select {
	case <-third.done:
		t.Error("two lead, or the third gave up")
	default:
	}
	if err := next.Resign(background(t)); err != nil {
		t.Error(err)
	}
	third.wins(t)
}

// A leader that is killed keeps the others waiting for its lease, and not longer.
func testKilled(t *testing.T, m *etcd.Members) {
	config := configOf(t, m, "killed")
	config.LeaseTTL = shortLease
	leader, term := startChild(t, config)
	config.HostID = "next"
	next := join(t, config)
	candidate := stand(t, next)
	began := time.Now()
	leader.kill()
	candidate.wins(t)
	t.Logf("led %v after the kill, with a lease of %v", time.Since(began).Round(time.Millisecond), shortLease)
	if fenced(t, next, term) {
		t.Error("the fence of the dead leader holds")
	}
}

// A leader that was paused finds itself invalid when it wakes, before anybody has told it anything.
func testPaused(t *testing.T, m *etcd.Members) {
	config := configOf(t, m, "paused")
	config.LeaseTTL = shortLease
	leader, _ := startChild(t, config)
	config.HostID = "next"
	candidate := stand(t, join(t, config))
	leader.signal(t, syscall.SIGSTOP)
	candidate.wins(t)
	continued := host.SinceBoot()
	leader.signal(t, syscall.SIGCONT)
	for {
		said := leader.next(t, "woke")
		if at, err := strconv.ParseInt(said[0], 10, 64); err != nil {
			t.Fatal(err)
		} else if time.Duration(at) < continued {
			continue // it was kept from running before, on a busy machine
		}
		if said[1] != "false" {
			t.Error("held itself for valid while another one led")
		}
		break
	}
}

// An election key that is gone ends the term though the lease is renewed all the time: as with an etcd that answers renewals
// of leases that it has revoked.
func testKeyDeleted(t *testing.T, m *etcd.Members) {
	leads, other := join(t, configOf(t, m, "leads")), join(t, configOf(t, m, "other"))
	term := elect(t, leads)
	candidate := stand(t, other)
	if _, err := m.Client().Delete(background(t), term.Key); err != nil {
		t.Fatal(err)
	}
	candidate.wins(t)
	awaitLost(t, term)
	ttl, err := m.Client().TimeToLive(background(t), term.lease.id)
	if err != nil || ttl.TTL <= 0 {
		t.Errorf("the lease was to be alive: %v, %v", ttl, err)
	}
	t.Log(term.Reason())
}

// A lease that etcd ends early ends the term.
func testRevoked(t *testing.T, m *etcd.Members) {
	term := elect(t, join(t, configOf(t, m, "leads")))
	if _, err := m.Client().Revoke(background(t), term.lease.id); err != nil {
		t.Fatal(err)
	}
	awaitLost(t, term)
	t.Log(term.Reason())
}

// A candidate that gives up is none any more, and others do not wait for its lease.
func testGivesUp(t *testing.T, m *etcd.Members) {
	leads, gives := join(t, configOf(t, m, "leads")), join(t, configOf(t, m, "gives"))
	term := elect(t, leads)
	ctx, cancel := context.WithCancel(background(t))
	done := make(chan error, 1)
	go func() {
		_, err := gives.Campaign(ctx)
		done <- err
	}()
	await(t, "the candidate", func() bool {
		queue, _, err := leads.candidates(background(t))
		return err == nil && len(queue) == 2
	})
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("gave up: %v", err)
	}
	if queue, _, err := leads.candidates(background(t)); err != nil || len(queue) != 1 || queue[0].Revision != term.Revision {
		t.Errorf("candidates: %v, %v", queue, err)
	}
}

// To the others, a connection that was closed is a host that died.
func testClosed(t *testing.T, m *etcd.Members) {
	config := configOf(t, m, "closed")
	config.LeaseTTL = shortLease
	c, err := Open(background(t), config)
	if err != nil {
		t.Fatal(err)
	}
	term := elect(t, c)
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	awaitLost(t, term)
	config.HostID = "next"
	next := join(t, config)
	queue, _, err := next.candidates(background(t))
	if err != nil || len(queue) != 1 || queue[0].ID != "closed" {
		t.Errorf("candidates: %v, %v", queue, err)
	}
	elect(t, next)
}

// Hosts are listed while they are alive, and whoever leads is known by all.
func testHosts(t *testing.T, m *etcd.Members) {
	a, b := join(t, configOf(t, m, "a")), join(t, configOf(t, m, "b"))
	ctx, cancel := context.WithCancel(background(t))
	leaders, ended := make(chan Leader, 100), make(chan error, 3)
	go func() { ended <- b.WatchLeader(ctx, func(l Leader) { leaders <- l }) }()
	if l := <-leaders; l != (Leader{}) {
		t.Errorf("led by %v before any election", l)
	}
	term := elect(t, a)
	if l := <-leaders; l.Host != a.Host() || l.Revision != term.Revision {
		t.Errorf("led by %v, not %v", l, a.Host())
	}
	go func() { ended <- a.Announce(ctx, func() State { return State{Role: "leading", Applied: 7} }) }()
	listed, stop := context.WithCancel(ctx)
	gone := make(chan error, 1)
	go func() { gone <- b.Announce(listed, func() State { return State{Role: "following", Applied: 5} }) }()
	await(t, "both hosts", func() bool {
		hosts, err := a.Hosts(ctx)
		return err == nil && len(hosts) == 2 && hosts[0].Applied == 7 && hosts[1] == Host{ID: "b", Address: "b:18001", Version: "1.2.3", State: State{Role: "following", Applied: 5}}
	})
	stop()
	if err := <-gone; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if hosts, err := a.Hosts(ctx); err != nil || len(hosts) != 1 || hosts[0].ID != "a" {
		t.Errorf("hosts, one of which has left: %v, %v", hosts, err)
	}
	// A key that no version of kv3fs has written is in the queue, and harms nobody.
	if _, err := m.Client().Put(ctx, a.key("election", "zz"), "\xff"); err != nil {
		t.Fatal(err)
	}
	if err := term.Resign(ctx); err != nil {
		t.Fatal(err)
	}
	for l := range leaders {
		if l.ID == a.key("election", "zz") {
			break
		}
	}
	cancel()
	for range 2 {
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
}

// Members say how full they are.
func testSpace(t *testing.T, m *etcd.Members) {
	c := join(t, configOf(t, m, "a"))
	await(t, "all members", func() bool {
		leaders := 0
		for _, is := range c.Space(background(t)) {
			if is.Err != nil {
				return false
			}
			if is.Leader {
				leaders++
			}
			if is.Version == "" || is.DatabaseBytes <= 0 || is.InUseBytes <= 0 || is.InUseBytes > is.DatabaseBytes || is.QuotaBytes != DefaultQuotaBytes || is.NoSpace || is.Corrupt {
				t.Fatalf("%+v", is)
			}
		}
		return leaders == 1
	})
}
