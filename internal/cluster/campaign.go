package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// lookPeriod is how often what a watch should have told is asked for.
const lookPeriod = 2 * time.Second

// withdrawTimeout bounds how long a candidate that gives up tells etcd so; its lease runs out otherwise.
const withdrawTimeout = 2 * time.Second

// Campaign makes this host a candidate and waits until it leads: candidates lead in the order in which they came. An error other than that
// of ctx says that this host is no candidate any more, or never was; the call may be repeated after a pause. ErrNoSpace: etcd is full,
// and takes no candidate that it does not have; those that wait already are not affected.
//
// The term ends by itself; a caller that is done with it calls Resign.
func (c *Cluster) Campaign(ctx context.Context) (*Term, error) {
	if err := c.rested(ctx); err != nil {
		return nil, err
	}
	l, err := c.grant(ctx, c.config.LeaseTTL)
	if err != nil {
		return nil, err
	}
	t := &Term{c: c, lease: l, Key: fmt.Sprintf("%s/%016x", c.key("election"), uint64(l.id))}
	c.wg.Go(l.keep)
	if err = t.stand(ctx); err == nil {
		err = t.awaitTurn(ctx)
	}
	if err == nil {
		err = c.persist(ctx, t.prove)
	}
	if l.isOver() {
		err = t.Reason()
	}
	if err != nil {
		l.end(err)
		withdraw, cancel := context.WithTimeout(c.ctx, withdrawTimeout)
		defer cancel()
		return nil, errors.Join(err, l.revoke(withdraw))
	}
	c.wg.Go(func() { l.repeat(t.prove) })
	c.config.Logger.Info("this host leads", "term", t.Revision)
	return t, nil
}

// stand puts this host's election key, once, whatever is answered.
func (t *Term) stand(ctx context.Context) error {
	record, err := t.c.Host().encode()
	if err != nil {
		return err
	}
	return t.c.persist(ctx, func(ctx context.Context) error {
		answer, err := t.c.client.Txn(ctx).
			If(clientv3.Compare(clientv3.CreateRevision(t.Key), "=", 0)).
			Then(clientv3.OpPut(t.Key, record, clientv3.WithLease(t.lease.id))).
			Else(clientv3.OpGet(t.Key)).
			Commit()
		switch {
		case err != nil:
			return err
		case answer.Succeeded:
			t.Revision = answer.Header.Revision
		default: // an earlier attempt, whose answer was lost
			t.Revision = answer.Responses[0].GetResponseRange().Kvs[0].CreateRevision
		}
		return nil
	})
}

// awaitTurn waits until no older candidate is there. It needs no fresh answer: in whatever revision this host's key exists, all
// older candidates that are still there exist, too.
func (t *Term) awaitTurn(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(t.lease.ctx, cancel)()
	for {
		var queue []Leader
		var revision int64
		err := t.c.persist(ctx, func(ctx context.Context) (err error) {
			queue, revision, err = t.c.candidates(ctx)
			return err
		})
		if err != nil {
			return err
		}
		place := slices.IndexFunc(queue, func(l Leader) bool { return l.key == t.Key })
		switch {
		case place == 0:
			return nil
		case place > 0:
			t.c.awaitChange(ctx, queue[place-1].key, revision, lookPeriod)
		case revision >= t.Revision:
			t.Disproved()
			return t.Reason()
		default: // the answer is from before this host's key
			if err := t.c.pause(ctx, retryPause); err != nil {
				return err
			}
		}
	}
}

// awaitChange waits until a key has changed since a revision, but no longer than a bound, or until ctx ends.
func (c *Cluster) awaitChange(ctx context.Context, key string, since int64, most time.Duration, options ...clientv3.OpOption) {
	// A member that is cut off from the others then ends the watch.
	ctx, cancel := context.WithTimeout(clientv3.WithRequireLeader(ctx), most)
	defer cancel()
	for answer := range c.client.Watch(ctx, key, append(options, clientv3.WithRev(since+1))...) {
		if answer.Err() != nil {
			_ = c.pause(ctx, retryPause) // whoever waits asks next
			return
		}
		if len(answer.Events) > 0 {
			return
		}
	}
}
