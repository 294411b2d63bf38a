package cluster

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// A prefix belongs to one data directory; another one is refused, and so is what a newer version has written.
func testIdentity(t *testing.T, m *etcd.Members) {
	ctx := background(t)
	a, b := join(t, configOf(t, m, "a")), join(t, configOf(t, m, "b"))
	if err := a.Identify(ctx, "data-1", true); !errors.Is(err, ErrEmptied) || !strings.Contains(err.Error(), "--pages-start-over") {
		t.Errorf("an etcd that has forgotten: %v", err)
	}
	if a.ID() != "" {
		t.Error("has an ID")
	}
	if err := a.Identify(ctx, "data-1", false); err != nil {
		t.Fatal(err)
	}
	if err := b.Identify(ctx, "data-1", true); err != nil || b.ID() != a.ID() || a.ID() == "" {
		t.Errorf("the same directory: %v, %q and %q", err, a.ID(), b.ID())
	}
	for name, identify := range map[string]func() error{
		"identify":   func() error { return b.Identify(ctx, "data-2", false) },
		"start over": func() error { return b.StartOver(ctx, "data-2", "") },
	} {
		err := identify()
		if !errors.Is(err, ErrOtherCluster) || !strings.Contains(err.Error(), "data-1") || !strings.Contains(err.Error(), "data-2") {
			t.Errorf("%s with another directory: %v", name, err)
		}
	}
	was := a.ID()
	if err := b.StartOver(ctx, "data-1", ""); err != nil || b.ID() == was {
		t.Errorf("started over: %v, %q after %q", err, b.ID(), was)
	}
	if err := a.Identify(ctx, "data-1", true); err != nil || a.ID() != b.ID() {
		t.Errorf("after the other host started over: %v, %q and %q", err, a.ID(), b.ID())
	}
	for record, wants := range map[string]error{
		`{"format":2,"data_id":"data-1","id":"x","host":"newest","version":"9.9"}`: ErrNewer,
		`{"format":0,"data_id":"data-1","id":"x"}`:                                 nil,
		`{"format":1,"data_id":"","id":"x"}`:                                       nil,
		`another program's`:                                                        nil,
	} {
		if _, err := m.Client().Put(ctx, a.key("cluster"), record); err != nil {
			t.Fatal(err)
		}
		for _, err := range []error{a.Identify(ctx, "data-1", false), a.StartOver(ctx, "data-1", "")} {
			switch {
			case err == nil:
				t.Errorf("%s was accepted", record)
			case wants == nil && !strings.Contains(err.Error(), "name another prefix"):
				t.Errorf("%s: %v", record, err)
			case wants != nil && (!errors.Is(err, wants) || !strings.Contains(err.Error(), "newest") || !strings.Contains(err.Error(), "9.9")):
				t.Errorf("%s: %v", record, err)
			}
		}
	}
}

// Hosts that come first at the same time agree on one cluster, and only those of one directory are in it.
func testIdentityRaces(t *testing.T, m *etcd.Members) {
	ctx := background(t)
	var hosts []*Cluster
	for n := range 4 {
		hosts = append(hosts, join(t, configOf(t, m, hostName(n))))
	}
	errs := make([]error, len(hosts))
	var wg sync.WaitGroup
	for n, h := range hosts {
		wg.Go(func() { errs[n] = h.Identify(ctx, []string{"data-1", "data-2"}[n%2], false) })
	}
	wg.Wait()
	won := 0
	if errs[0] != nil {
		won = 1
	}
	for n, h := range hosts {
		switch {
		case n%2 == won && (errs[n] != nil || h.ID() != hosts[won].ID()):
			t.Errorf("host %d: %v, %q", n, errs[n], h.ID())
		case n%2 != won && !errors.Is(errs[n], ErrOtherCluster):
			t.Errorf("host %d of another directory: %v", n, errs[n])
		}
	}
}

// A cluster that a host leads is not begun anew: the leader would go on, and the next one would forget everything at some later time.
func testStartOverWhileLed(t *testing.T, m *etcd.Members) {
	ctx := background(t)
	a, b := join(t, configOf(t, m, "a")), join(t, configOf(t, m, "b"))
	if err := a.StartOver(ctx, "data-1", "an index of host x"); err != nil {
		t.Fatal(err)
	}
	was := a.ID()
	if err := b.Identify(ctx, "data-1", true); err != nil || b.ID() != was || b.Before() != "an index of host x" {
		t.Errorf("%v, %q, %q", err, b.ID(), b.Before())
	}
	term, err := a.Campaign(ctx)
	if err != nil {
		t.Fatal(err)
	}
	announcing, leave := context.WithCancel(ctx)
	left := make(chan struct{})
	go func() {
		defer close(left)
		_ = a.Announce(announcing, func() State { return State{Role: RoleLeading} }) // ends with its context
	}()
	await(t, "it refuses", func() bool {
		err = b.StartOver(ctx, "data-1", "")
		return err != nil
	})
	if !errors.Is(err, ErrLed) || !strings.Contains(err.Error(), "host a at a:18001") {
		t.Error(err)
	}
	if err := term.Resign(ctx); err != nil {
		t.Error(err)
	}
	if err := b.StartOver(ctx, "data-1", ""); err != nil || b.ID() == was {
		t.Errorf("with no leader: %v", err)
	}
	leave()
	<-left
}
