package cluster

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/etcd"
	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }

// patience bounds what takes a moment on a machine with nothing else to do.
const patience = 2 * time.Minute

func background(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

func configOf(m *etcd.Members, hostID string) Config {
	return Config{
		Endpoints: m.Endpoints(), Prefix: "/kv3fs/test", TLS: m.TLS(),
		HostID: hostID, Address: hostID + ":18001", Version: "1.2.3",
		Logger: slog.New(slog.DiscardHandler),
	}
}

// join opens the cluster as a host.
func join(t *testing.T, config Config) *Cluster {
	t.Helper()
	c, err := Open(background(t), config)
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

// await waits until something holds that nothing tells.
func await(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("waited %v in vain: %s", patience, what)
		}
	}
}

// isClosed reports whether a channel is closed.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// fenced writes under a term's fence, through a client of its own.
func fenced(t *testing.T, m *etcd.Members, term *Term, key string) (went bool) {
	t.Helper()
	c := m.Client()
	m.Await("a fenced put", func(ctx context.Context) error {
		answer, err := c.Txn(ctx).If(term.Fence()).Then(opPut(key)).Commit()
		if err == nil {
			went = answer.Succeeded
		}
		return err
	})
	return went
}

func hostName(n int) string { return fmt.Sprintf("host%d", n) }
