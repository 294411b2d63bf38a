package daemon

import (
	"context"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice/etcdlog"
)

// stand returns why this host should not lead: the leader refuses it, which has the wrong token perhaps, and takes the requests of others. They would
// be refused by this one. Where others are refused as well, the leader is wrong, and makes room once one of them stands.
func (r *replica) stand(ctx context.Context, c *cluster.Cluster) error {
	why := r.client.Refused(c.LeaseTTL())
	if why == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, c.LeaseTTL()/2)
	defer cancel()
	hosts, err := c.Hosts(ctx)
	if err != nil {
		return fmt.Errorf("no candidate, since the leader refuses it, and nobody knows yet whether it refuses others: %w", err)
	}
	r.mu.Lock()
	leads := r.leader
	r.mu.Unlock()
	for _, h := range hosts {
		if h.ID != r.at.me.Identity && h.ID != leads.ID && h.Role == string(etcdlog.Following) && h.Cut != leads.Revision {
			return fmt.Errorf("no candidate, since the leader refuses this host and not host %s: %w", h.ID, why)
		}
	}
	return nil
}
