package cluster

import (
	"context"
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

// Contested reports whether another host stands for election, to lead when this one gives up.
func (t *Term) Contested(ctx context.Context) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, t.c.attempt())
	defer cancel()
	queue, _, err := t.c.candidates(ctx)
	return slices.ContainsFunc(queue, func(l Leader) bool { return l.key != t.Key }), explain(err)
}
