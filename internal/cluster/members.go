package cluster

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc"
)

const (
	probePeriod = time.Second
	// sickAfter is how many probes in a row must fail before a member is avoided.
	sickAfter = 2
)

// member is one of etcd's, with a connection of its own for what concerns only that one.
type member struct {
	endpoint string // HOST:PORT
	url      string
	conn     *grpc.ClientConn
	kv       pb.KVClient
	status   pb.MaintenanceClient

	failures int // probes in a row; of avoidSick

	mu      sync.Mutex
	quota   int64 // as it was told last
	askedAt time.Duration
}

// connect makes the members' connections, and waits until one of them answers a read that needs most of them.
func (c *Cluster) connect(ctx context.Context) error {
	urls := endpointURLs(c.config)
	for i, e := range c.config.Endpoints {
		conn, err := c.client.Dial(urls[i])
		if err != nil {
			return err
		}
		c.members = append(c.members, &member{endpoint: e, url: urls[i], conn: conn, kv: pb.NewKVClient(conn), status: pb.NewMaintenanceClient(conn)})
	}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	outcomes := make(chan error, len(c.members))
	for _, m := range c.members {
		wg.Go(func() {
			outcomes <- c.persist(ctx, func(ctx context.Context) error { return c.probe(ctx, m) })
		})
	}
	defer wg.Wait()
	defer cancel()
	var err error
	for range c.members {
		if err = <-outcomes; err == nil {
			return nil
		}
	}
	return err
}

// probe asks a member something that it can answer only with most of the others.
func (c *Cluster) probe(ctx context.Context, m *member) error {
	_, err := m.kv.Range(ctx, &pb.RangeRequest{Key: []byte(c.key("cluster")), CountOnly: true})
	return rpctypes.Error(err)
}

// avoidSick keeps requests from members that do not answer, or do not reach the others: a member that is stopped holds
// a connection open that seems to work for pingPeriod and longer, and one that is cut off from the others for ever.
func (c *Cluster) avoidSick() {
	tick := time.NewTicker(probePeriod)
	defer tick.Stop()
	used := endpointURLs(c.config)
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
		}
		well := c.probeAll()
		if len(well) == 0 || slices.Equal(well, used) {
			continue // where all are sick, none is better than another
		}
		c.config.Logger.Info("etcd members that answer", "members", strings.Join(well, " "), "of", len(c.members))
		c.client.SetEndpoints(well...)
		used = well
	}
}

// probeAll returns the members that are well.
func (c *Cluster) probeAll() (well []string) {
	ctx, cancel := context.WithTimeout(c.ctx, c.attempt())
	defer cancel()
	var wg sync.WaitGroup
	for _, m := range c.members {
		wg.Go(func() {
			if transient(c.probe(ctx, m)) {
				m.failures++
			} else {
				m.failures = 0
			}
		})
	}
	wg.Wait()
	for _, m := range c.members {
		if m.failures < sickAfter {
			well = append(well, m.url)
		}
	}
	return well
}
