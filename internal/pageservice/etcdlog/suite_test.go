package etcdlog

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/indextest"
	"github.com/kv3fs/kv3fs/internal/test/etcd"
)

func TestIndexOnEtcd(t *testing.T) {
	t.Parallel()
	members := etcd.Start(t, etcd.Options{})
	indextest.Run(t, func(t *testing.T) indextest.Logs { return &hosts{site: newSite(t, members)} })
}

// hosts are the logs of one test: each that is opened is another host's.
type hosts struct {
	*site
	n    int
	last *suiteLog
}

type suiteLog struct {
	*Log
	cluster *cluster.Cluster
}

// Close also closes the connection, which the suite does not know.
func (l *suiteLog) Close() error { return errors.Join(l.Log.Close(), l.cluster.Close()) }

func (h *hosts) New() pageservice.Log {
	h.Helper()
	h.n++
	c, err := cluster.Open(context.Background(), cluster.Config{
		Endpoints: h.members.Endpoints(), Prefix: h.prefix, HostID: fmt.Sprintf("host%d", h.n), Address: "127.0.0.1:1", LeaseTTL: h.ttl,
	})
	if err == nil {
		err = c.Identify(h.Context(), dataID, false)
	}
	if err != nil {
		h.Fatal(err)
	}
	h.last = &suiteLog{New(c, h.o), c}
	return h.last
}

// Crash takes the election key of the host that leads away, as its lease does some time after kill -9.
func (h *hosts) Crash() {
	h.Helper()
	if _, err := h.members.Client().Delete(h.Context(), h.last.leaderOf().term.Key); err != nil {
		h.Fatal(err)
	}
}
