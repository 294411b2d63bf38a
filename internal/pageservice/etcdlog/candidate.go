package etcdlog

import (
	"context"
	"time"

	"github.com/kv3fs/kv3fs/internal/cluster"
)

// candidate is a host that waits until it is elected.
type candidate struct {
	*Log
	ctx     context.Context // ends with the candidacy
	cancel  context.CancelFunc
	elected chan *cluster.Term
}

// stand makes a candidate until ctx ends, once campaign is called.
func (l *Log) stand(ctx context.Context) *candidate {
	c := &candidate{Log: l, elected: make(chan *cluster.Term)}
	c.ctx, c.cancel = context.WithCancel(ctx)
	return c
}

// wins returns where the term comes when the host is elected; nothing comes from no candidate.
func (c *candidate) wins() <-chan *cluster.Term {
	if c == nil {
		return nil
	}
	return c.elected
}

// withdraw ends the candidacy, if there is one.
func (c *candidate) withdraw() {
	if c != nil {
		c.cancel()
	}
}

// campaign waits until this host is elected, and says so.
func (c *candidate) campaign() {
	defer c.cancel()
	for c.ctx.Err() == nil {
		term, err := c.cluster.Campaign(c.ctx)
		if err != nil {
			c.o.Logger.Debug("page log: no candidate", "err", err)
			pause(c.ctx, c.o.Period)
			continue
		}
		// The goroutine of Start may be busy with a snapshot, or hang in the shared directory.
		busy := time.NewTimer(c.cluster.LeaseTTL() / 2)
		select {
		case c.elected <- term:
			busy.Stop()
			return
		case <-c.ctx.Done():
		case <-busy.C:
		}
		busy.Stop()
		c.resign(term)
		pause(c.ctx, c.o.Period)
	}
}
