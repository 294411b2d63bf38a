package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		child()
	}
	os.Exit(etcd.Main(m, 12))
}

// patience bounds what takes a moment on a machine with nothing else to do.
const patience = 2 * time.Minute

// A host that is kept from running for a second must not lose its lease where a test does not want that.
const longLease = 20 * time.Second

func background(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// configOf is that of a host, with a prefix of the test's own.
func configOf(t *testing.T, m *etcd.Members, host string) Config {
	t.Helper()
	return Config{
		Endpoints: m.Endpoints(), Prefix: "/kv3fs/" + t.Name(), TLS: m.TLS(),
		HostID: host, Address: host + ":18001", Version: "1.2.3", LeaseTTL: longLease,
	}
}

// join opens the cluster as a host.
func join(t *testing.T, config Config) *Cluster {
	t.Helper()
	var c *Cluster
	var err error
	await(t, "etcd", func() bool {
		c, err = Open(background(t), config)
		return !errors.Is(err, ErrUnreachable)
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return c
}

// elect makes a host the leader.
func elect(t *testing.T, c *Cluster) *Term {
	t.Helper()
	term, err := c.Campaign(background(t))
	if err != nil {
		t.Fatal(err)
	}
	return term
}

// standing is a candidacy in the background.
type standing struct {
	term *Term
	err  error
	done chan struct{}
}

// stand makes a host a candidate, and returns when etcd has it as one.
func stand(t *testing.T, c *Cluster) *standing {
	t.Helper()
	s := &standing{done: make(chan struct{})}
	ctx := background(t)
	go func() {
		defer close(s.done)
		s.term, s.err = c.Campaign(ctx)
	}()
	t.Cleanup(func() { <-s.done })
	await(t, "the candidate", func() bool {
		queue, _, err := c.candidates(ctx)
		return err == nil && len(queue) > 0 && queue[len(queue)-1].ID == c.config.HostID
	})
	return s
}

// wins waits until a candidate leads.
func (s *standing) wins(t *testing.T) *Term {
	t.Helper()
	<-s.done // Campaign's context is bounded
	if s.err != nil {
		t.Fatalf("the candidate does not lead: %v", s.err)
	}
	return s.term
}

// await waits until something holds that nothing tells.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

// awaitLost waits until a term is over.
func awaitLost(t *testing.T, term *Term) {
	t.Helper()
	select {
	case <-term.Lost():
	case <-time.After(patience):
		t.Fatal("the term does not end")
	}
	if term.Valid() {
		t.Error("a term that is over is valid")
	}
}

// isLost reports whether a term is over.
func isLost(term *Term) bool { return term.Reason() != nil }

// fenced writes under a term's fence, and reports whether that went through.
func fenced(t *testing.T, c *Cluster, term *Term) (went bool) {
	t.Helper()
	err := c.persist(background(t), func(ctx context.Context) error {
		answer, err := c.client.Txn(ctx).If(term.Fence()).Then(clientv3.OpPut(c.key("x"), "1")).Commit()
		if err == nil {
			went = answer.Succeeded
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return went
}

func hostName(n int) string { return fmt.Sprintf("host%d", n) }
