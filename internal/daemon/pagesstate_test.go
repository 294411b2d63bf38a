package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

// TestHostsWhileEtcdIsSilent: hosts that were listed do not vanish from what is shown because etcd does not answer.
func TestHostsWhileEtcdIsSilent(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{Members: 1})
	m := newMover(t, true)
	a := m.start("a", fmt.Sprintf("etcd://%s/kv3fs/silent", members.Endpoints()[0]), false)
	m.has(a, "K", false)
	listed := func() bool { return len(a.server.StoreState(t.Context()).Hosts) == 1 }
	await(t, "it is listed", listed)
	members.Stop(0)
	await(t, "the member is known not to answer", func() bool {
		is := a.server.StoreState(t.Context())
		return len(is.Members) == 1 && is.Members[0].Error != ""
	})
	if !listed() {
		t.Error("no host is listed any more")
	}
	members.Continue(0)
	a.end(t)
}

// TestPeerAddressInUse: an address for other hosts that is in use is an error that names it, also where one for engines would only be a warning.
func TestPeerAddressInUse(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	config, err := cluster.ParseStore("etcd://127.0.0.1:1/kv3fs/x")
	if err != nil {
		t.Fatal(err)
	}
	p := Pages{
		Listen: []httpserver.Address{{Network: "tcp", Where: "127.0.0.1:0"}}, Optional: true, Log: slog.New(slog.DiscardHandler),
		Cluster: &PagesCluster{Store: EtcdStore{config}, Listen: l.Addr().String(), Token: "of hosts"},
	}
	s, err := pagesOf(t.Context(), sharedPlace(t, t.TempDir(), "a"), p, nil)
	if s != nil || err == nil || errors.Is(err, unix.EADDRINUSE) || !strings.Contains(err.Error(), "--pages-peer-listen") || !strings.Contains(err.Error(), l.Addr().String()) {
		t.Errorf("%v, %v", s, err)
	}
}

// TestRisks: what is likely to be a mistake is told.
func TestRisks(t *testing.T) {
	for _, c := range []struct {
		store, user, address string
		risks                []string
	}{
		{"etcd://10.0.0.1:2379/x", "", "10.0.0.7:1", nil},
		{"etcd://127.0.0.1:2379/x", "u", "h:1", nil},
		{"etcd://10.0.0.1:2379/x", "u", "127.0.0.1:1", []string{"127.0.0.1:1", "--pages-store-ca"}},
		{"etcd://[::1]:2379,etcd:2379/x", "u", "localhost:1", []string{"--pages-peer-address", "as it is"}},
	} {
		config, err := cluster.ParseStore(c.store)
		if err != nil {
			t.Fatal(err)
		}
		config.Username, config.Address = c.user, c.address
		got := (&PagesCluster{Store: EtcdStore{config}}).risks()
		if len(got) != len(c.risks) {
			t.Errorf("%+v: %q", c, got)
			continue
		}
		for i, want := range c.risks {
			if !strings.Contains(got[i], want) {
				t.Errorf("%+v: %q does not say %q", c, got[i], want)
			}
		}
	}
}

// TestClusterMetrics: who leads, how far it is, how often that has changed and for how long it is so.
func TestClusterMetrics(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{Members: 1})
	m := newMover(t, true)
	store := fmt.Sprintf("etcd://%s/kv3fs/metrics", members.Endpoints()[0])
	a := m.start("a", store, false)
	m.save(a, "K")
	b := m.start("b", store, false)
	m.has(b, "K", true)
	var before int64 // a may have lost and taken the lead again, on a slow machine
	await(t, "b knows who leads", func() bool {
		is := b.server.StoreState(t.Context())
		before = is.LeaderChanges
		return is.Leader != nil && is.Leader.Host == "a" && is.Leader.ForSeconds > 0 && is.Applied > 0
	})
	a.end(t)
	m.has(b, "K", true)
	await(t, "b leads, and knows that it was another host", func() bool {
		is := b.server.StoreState(t.Context())
		return is.Role == cluster.RoleLeading && is.LeaderChanges > before && is.Leader != nil && is.Leader.Host == "b"
	})
	b.end(t)
	all := prometheus.NewPedanticRegistry()
	all.MustRegister(newClusterMetrics(&replica{p: Pages{Cluster: &PagesCluster{}}}))
	if got, err := all.Gather(); err != nil || len(got) != 7 { // without those of a leader and of etcd
		t.Error(got, err)
	}
}
