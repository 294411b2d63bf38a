package cluster

import (
	"context"
	"errors"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// A member that is stopped, not dead, holds connections open that say nothing (Mooncake #2253). The leader stays leader, and soon no request
// goes to that member any more; the same with one that is dead. Afterwards all are used again.
func TestSickMember(t *testing.T) {
	t.Parallel()
	m := etcd.Start(t, etcd.Options{})
	config := configOf(t, m, "leads")
	config.LeaseTTL = longLease / 2
	c := join(t, config)
	term := elect(t, c)
	for _, sick := range []struct {
		name       string
		begin, end func(int)
		member     int
	}{
		{"a member is stopped", m.Stop, m.Continue, (m.Leader() + 1) % m.Len()},
		{"the members' leader is stopped", m.Stop, m.Continue, m.Leader()},
		{"a member is dead", m.Kill, m.Restart, (m.Leader() + 1) % m.Len()},
	} {
		sick.begin(sick.member)
		await(t, sick.name+" and is avoided", func() bool {
			used := c.client.Endpoints()
			return len(used) == m.Len()-1 && !slices.Contains(used, "http://"+m.Endpoints()[sick.member])
		})
		for range 2 * m.Len() { // to each of them
			ctx, cancel := context.WithTimeout(background(t), longLease)
			if _, err := c.client.Put(ctx, c.key("x"), "1"); err != nil {
				t.Errorf("%s: put: %v", sick.name, err)
			}
			cancel()
		}
		if isLost(term) || !fenced(t, c, term) {
			t.Fatalf("%s: the leader is no more: %v", sick.name, term.Reason())
		}
		sick.end(sick.member)
		await(t, "all members are used again", func() bool { return len(c.client.Endpoints()) == m.Len() })
	}
}

// An etcd without most of its members proves nothing: the leader is not valid, and it is again when they come back, if its lease has been kept.
// No call hangs.
func TestNoMajority(t *testing.T) {
	t.Parallel()
	m := etcd.Start(t, etcd.Options{})
	config := configOf(t, m, "leads")
	config.LeaseTTL = shortLease
	c := join(t, config)
	term := elect(t, c)
	m.Stop(0)
	m.Stop(1)
	await(t, "the term is not valid", func() bool { return !term.Valid() })
	other := config
	other.HostID = "other"
	ctx, cancel := context.WithTimeout(background(t), 2*time.Second)
	defer cancel()
	if _, err := Open(ctx, other); !errors.Is(err, ErrUnreachable) {
		t.Errorf("opened, or failed otherwise: %v", err)
	}
	if is := c.Space(background(t)); is[0].Err == nil || is[1].Err == nil {
		t.Errorf("%+v", is)
	}
	m.Continue(0)
	m.Continue(1)
	await(t, "the term is valid, or over", func() bool { return term.Valid() || isLost(term) })
}

// An etcd that has lost everything, or is from before the term, ends the term; and it is not taken for a new cluster's.
func TestEmptied(t *testing.T) {
	t.Parallel()
	m := etcd.Start(t, etcd.Options{})
	config := configOf(t, m, "leads")
	config.LeaseTTL = shortLease
	c := join(t, config)
	before := m.Backup()
	if err := c.Identify(background(t), "data-1", false); err != nil {
		t.Fatal(err)
	}
	for name, lose := range map[string]func(){"emptied": m.Wipe, "restored": func() { m.Restore(before) }} {
		term := elect(t, c)
		lose()
		awaitLost(t, term)
		if fenced(t, c, term) {
			t.Errorf("%s: the fence holds", name)
		}
		if err := c.Identify(background(t), "data-1", true); !errors.Is(err, ErrEmptied) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A full etcd grants no lease. The leader stays, and whoever waits leads after it; nobody else becomes a candidate, and is told why.
func TestFullEtcd(t *testing.T) {
	t.Parallel()
	m := etcd.Start(t, etcd.Options{QuotaBytes: 16 << 20})
	leads, waits, late := join(t, configOf(t, m, "leads")), join(t, configOf(t, m, "waits")), join(t, configOf(t, m, "late"))
	term := elect(t, leads)
	candidate := stand(t, waits)
	m.Fill()
	proof := term.proven.Load()
	await(t, "another proof", func() bool { return term.proven.Load() > proof || isLost(term) })
	if isLost(term) {
		t.Fatal(term.Reason())
	}
	if _, err := late.Campaign(background(t)); !errors.Is(err, ErrNoSpace) || !strings.Contains(err.Error(), "alarm disarm") {
		t.Errorf("a late candidate: %v", err)
	}
	await(t, "members say so", func() bool {
		return !slices.ContainsFunc(leads.Space(background(t)), func(is Member) bool { return !is.NoSpace })
	})
	for _, is := range leads.Space(background(t)) {
		if is.QuotaBytes != 16<<20 {
			t.Errorf("%+v", is)
		}
	}
	if err := term.Resign(background(t)); err != nil {
		t.Fatal(err)
	}
	next := candidate.wins(t)
	m.Drain()
	if !fenced(t, waits, next) {
		t.Error("the leader cannot write to an etcd that has space again")
	}
	if err := next.Resign(background(t)); err != nil {
		t.Error(err)
	}
	elect(t, late)
}

// Idle connections are not pinged, which old members end connections for (Mooncake #3142), and those with a watch seldom enough.
func TestPingsAreNotTooMany(t *testing.T) {
	if os.Getenv("KV3FS_SOAK") == "" {
		t.Skip("KV3FS_SOAK runs this: it waits for a minute and a half")
	}
	t.Parallel()
	m := etcd.Start(t, etcd.Options{Members: 1})
	proxy := etcd.NewProxy(t, m.Endpoints()[0])
	config := configOf(t, m, "a")
	config.Endpoints = []string{proxy.Endpoint()}
	c := join(t, config)
	ctx, cancel := context.WithCancel(background(t))
	defer cancel()
	watch := c.client.Watch(clientv3.WithRequireLeader(ctx), c.key("x"))
	time.Sleep(45 * time.Second) // idle, with a watch
	cancel()
	for range watch { //nolint:revive // until it ends
	}
	had := proxy.Accepted()
	time.Sleep(45 * time.Second) // idle
	if has := proxy.Accepted(); has != had || had > 3 {
		t.Errorf("%d connections, then %d: some were ended", had, has)
	}
}
