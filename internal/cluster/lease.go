package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/host"
)

// lease is one of etcd's that this host keeps alive. It ends once: when etcd says that it is gone, when it could
// not be renewed for so long that it must be, or when this host ends it.
type lease struct {
	c   *Cluster
	id  clientv3.LeaseID
	ttl time.Duration // as granted

	until atomic.Int64 // SinceBoot, in ns: when it may end if no further renewal is answered

	ctx context.Context         // until the lease is over, or the Cluster closed
	end context.CancelCauseFunc // only the first reason counts
}

// grant gets a lease. Where etcd does not answer, it tries again until ctx ends: a lease that was granted unheard ends by itself.
func (c *Cluster) grant(ctx context.Context, ttl time.Duration) (*lease, error) {
	l := &lease{c: c}
	err := c.persist(ctx, func(ctx context.Context) error {
		sent := host.SinceBoot()
		granted, err := c.client.Grant(ctx, int64(ttl/time.Second))
		if err != nil {
			return err
		}
		// A cluster whose members are slow to elect grants no short ones.
		l.id, l.ttl = granted.ID, time.Duration(granted.TTL)*time.Second
		l.renewed(sent)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("etcd: lease: %w", err)
	}
	l.ctx, l.end = context.WithCancelCause(c.ctx)
	return l, nil
}

// margin is for what clocks differ in rate, and for the time between looking at one and answering.
func margin(ttl time.Duration) time.Duration { return ttl / 10 }

func (l *lease) renewed(sent time.Duration) { l.until.Store(int64(sent + l.ttl - margin(l.ttl))) }

// givenUp is for how many lease times in vain something is tried before it is held for lost.
const givenUp = 6

// keep renews the lease until it is over.
func (l *lease) keep() {
	l.repeat(func(ctx context.Context) error {
		sent := host.SinceBoot()
		_, err := l.c.client.KeepAliveOnce(ctx, l.id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			l.end(errors.New("etcd has ended its lease"))
			return nil
		}
		if err == nil {
			l.renewed(sent)
		}
		return err
	})
}

// repeat does something three times in a lease time, and soon again where it failed, until the lease is over. What has
// failed for givenUp lease times ends the lease.
func (l *lease) repeat(do func(context.Context) error) {
	succeeded := host.SinceBoot()
	for wait := l.c.config.LeaseTTL / 3; ; {
		if l.c.pause(l.ctx, wait) != nil {
			return
		}
		began := host.SinceBoot()
		once, cancel := context.WithTimeout(l.ctx, l.c.attempt())
		err := do(once)
		cancel()
		if err == nil {
			succeeded = began
			wait = max(0, l.c.config.LeaseTTL/3-(host.SinceBoot()-began))
			continue
		}
		wait = retryPause
		if host.SinceBoot()-succeeded > givenUp*l.ttl {
			l.end(explain(err))
			return
		}
	}
}

func (l *lease) isOver() bool { return l.ctx.Err() != nil }

// revoke gives the lease back to etcd, with all keys that hang on it.
func (l *lease) revoke(ctx context.Context) error {
	err := l.c.persist(ctx, func(ctx context.Context) error {
		_, err := l.c.client.Revoke(ctx, l.id)
		if errors.Is(err, rpctypes.ErrLeaseNotFound) {
			return nil
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("etcd: give the lease back: %w", err)
	}
	return nil
}
