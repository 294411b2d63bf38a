package cluster

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

func opPut(key string) clientv3.Op { return clientv3.OpPut(key, "1") }

// campaign has a host stand in the background; the outcome comes through the channel.
func campaign(ctx context.Context, c *Cluster) <-chan *Term {
	won := make(chan *Term, 1)
	go func() {
		defer close(won)
		if term, err := c.Campaign(ctx); err == nil {
			won <- term
		}
	}()
	return won
}

// candidatesAre waits until as many candidates are in etcd.
func candidatesAre(t *testing.T, c *Cluster, n int) {
	t.Helper()
	await(t, "candidates", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), c.attempt())
		defer cancel()
		queue, _, err := c.candidates(ctx)
		return err == nil && len(queue) == n
	})
}

func receive(t *testing.T, won <-chan *Term) *Term {
	t.Helper()
	select {
	case term, ok := <-won:
		if !ok {
			t.Fatal("the campaign failed")
		}
		return term
	case <-background(t).Done():
		t.Fatal("nobody was elected")
	}
	return nil
}

// Candidates lead in the order in which they came, one at a time, and know whether they do.
func TestElection(t *testing.T) {
	m := etcd.Start(t, etcd.Options{})
	var hosts []*Cluster
	for n := range 3 {
		hosts = append(hosts, join(t, configOf(m, hostName(n))))
	}
	first := elect(t, hosts[0])
	if !first.Valid() || isClosed(first.Lost()) || first.Reason() != nil {
		t.Errorf("just elected: valid %v, lost: %v", first.Valid(), first.Reason())
	}
	second := campaign(background(t), hosts[1])
	candidatesAre(t, hosts[0], 2)
	third := campaign(background(t), hosts[2])
	candidatesAre(t, hosts[0], 3)

	if err := first.Resign(background(t)); err != nil {
		t.Error(err)
	}
	if first.Valid() || !isClosed(first.Lost()) {
		t.Error("still leads after it resigned")
	}
	next := receive(t, second)
	if next.Revision <= first.Revision {
		t.Errorf("term %d after %d", next.Revision, first.Revision)
	}
	if fenced(t, m, first, "/kv3fs/test/x") {
		t.Error("wrote after it resigned")
	}
	if !fenced(t, m, next, "/kv3fs/test/x") {
		t.Error("the leader cannot write")
	}
	select {
	case <-third:
		t.Error("two lead")
	default:
	}
	if err := next.Resign(background(t)); err != nil {
		t.Error(err)
	}
	receive(t, third)
}
