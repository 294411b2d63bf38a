package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
)

// A host that gave up the lead because others do not reach it shall not have it again at once, nor shall two such hosts pass it to and
// fro: each rest is twice as long as the one before.
const (
	firstRest = time.Minute
	mostRest  = time.Hour
)

// Rest keeps this host from being a candidate for a while, which it returns.
func (c *Cluster) Rest() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := host.SinceBoot()
	if c.rest == 0 || now-c.restUntil > mostRest {
		c.rest = firstRest
	} else {
		c.rest = min(2*c.rest, mostRest)
	}
	c.restUntil = now + c.rest
	return c.rest
}

// resting returns how long this host is no candidate yet.
func (c *Cluster) resting() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return max(0, c.restUntil-host.SinceBoot())
}

// ErrRests: this host gave up the lead, and leaves it to others for a while.
var ErrRests = errors.New("it gave up the lead because others did not reach it, and is no candidate as long as another host leads")

// Rests returns an ErrRests while this host is no candidate because of Rest.
func (c *Cluster) Rests() error {
	if c.resting() == 0 {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return fmt.Errorf("%w, or for %v", ErrRests, c.rest)
}

// A rest ends early when nobody has led for so many lease times, and there is no candidate now; or when there is one, and it does not lead in
// the time that a host may take that was elected.
const (
	emptyTerms = 2
	vainTerms  = 4
)

// rested waits until this host need not rest any more.
func (c *Cluster) rested(ctx context.Context) error {
	led := host.SinceBoot()
	for c.resting() > 0 {
		now := host.SinceBoot()
		queue, leads, err := c.leads(ctx)
		if err != nil || leads {
			led = now
		}
		most := vainTerms * c.config.LeaseTTL
		if !queue {
			most = emptyTerms * c.config.LeaseTTL
		}
		if now-led >= most {
			c.mu.Lock()
			c.restUntil = now // the next one is twice as long nevertheless
			c.mu.Unlock()
			c.config.Logger.Info("this host is a candidate again, since nobody leads")
			return nil
		}
		if err := c.pause(ctx, min(lookPeriod, c.resting())); err != nil {
			return err
		}
	}
	return nil
}

// leads reports whether there are candidates, and whether the first of them says that it leads.
func (c *Cluster) leads(ctx context.Context) (candidates, leads bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, c.attempt())
	defer cancel()
	queue, _, err := c.candidates(ctx)
	if err != nil || len(queue) == 0 {
		return false, false, err
	}
	hosts, err := c.Hosts(ctx)
	return true, slices.ContainsFunc(hosts, func(h Host) bool { return h.ID == queue[0].ID && h.Role == RoleLeading }), err
}

// Contested reports whether another host stands for election, to lead when this one gives up.
func (t *Term) Contested(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, t.c.attempt())
	defer cancel()
	queue, _, err := t.c.candidates(ctx)
	return slices.ContainsFunc(queue, func(l Leader) bool { return l.key != t.Key }), explain(err)
}
