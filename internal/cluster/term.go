package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/host"
)

// Term is one time of this host as the leader. It ends once, and for good. Its methods may be called concurrently.
type Term struct {
	// Key is this host's election key, and Revision its create revision: greater than that of every earlier term.
	Key      string
	Revision int64

	c      *Cluster
	lease  *lease
	proven atomic.Int64 // SinceBoot, in ns: until when the last proof holds
}

// Fence is the condition without which nothing is written in this term. A transaction with it that goes through is proof that
// the host led when it was applied; one in which it fails ends the term (see Disproved).
func (t *Term) Fence() clientv3.Cmp {
	return clientv3.Compare(clientv3.CreateRevision(t.Key), "=", t.Revision)
}

// Until returns until when this host may answer from memory, in time of host.SinceBoot.
func (t *Term) Until() time.Duration {
	return time.Duration(min(t.proven.Load(), t.lease.until.Load()))
}

// Valid reports whether this host may answer from memory now. It asks nobody. False may become true again before Lost.
func (t *Term) Valid() bool { return !t.lease.isOver() && host.SinceBoot() < t.Until() }

// Lost is closed when the term is over: the fence failed, the lease is gone, either could not be renewed for long (6 lease times), the
// host resigned, or the Cluster was closed. Reason then says why.
func (t *Term) Lost() <-chan struct{} { return t.lease.ctx.Done() }

// Reason returns why the term is over, as an ErrLost; nil before that.
func (t *Term) Reason() error {
	if !t.lease.isOver() {
		return nil
	}
	return fmt.Errorf("%w: %w", ErrLost, context.Cause(t.lease.ctx))
}

// Proved tells the term that a transaction with its fence, and with a write in it, went through; sent is host.SinceBoot from before it was
// sent. A transaction that only reads proves nothing: an old member may answer it from the past.
func (t *Term) Proved(sent time.Duration) {
	until := int64(sent + t.c.config.LeaseTTL - margin(t.c.config.LeaseTTL))
	for {
		was := t.proven.Load()
		if was >= until || t.proven.CompareAndSwap(was, until) {
			return
		}
	}
}

// Disproved ends the term: a transaction with a write in it found the fence to fail.
func (t *Term) Disproved() { t.lease.end(errors.New("its election key is gone")) }

// Resign ends the term here and then in etcd, so that the next candidate leads at once. After an error it leads when the lease
// has run out.
func (t *Term) Resign(ctx context.Context) error {
	t.lease.end(errors.New("it resigned"))
	return t.lease.revoke(ctx)
}

// prove writes nothing under the fence, through etcd's log.
func (t *Term) prove(ctx context.Context) error {
	sent := host.SinceBoot()
	never := t.c.key("fence")
	answer, err := t.c.client.Txn(ctx).If(t.Fence()).Then(clientv3.OpDelete(never)).Commit()
	if isNoSpace(err) {
		return t.proveWhenFull(ctx)
	}
	switch {
	case err != nil:
		return err
	case answer.Succeeded:
		t.Proved(sent)
	default:
		t.Disproved()
	}
	return nil
}

// proveWhenFull is prove for an etcd that refuses even a transaction that only deletes: a deletion that is no transaction
// passes through the log, too, and says at which revision. What that revision says of the key is
// settled, whoever answers.
func (t *Term) proveWhenFull(ctx context.Context) error {
	sent := host.SinceBoot()
	deleted, err := t.c.client.Delete(ctx, t.c.key("fence"))
	if err != nil {
		return err
	}
	key, err := t.c.client.Get(ctx, t.Key, clientv3.WithRev(deleted.Header.Revision))
	switch {
	case err != nil:
		return err
	case len(key.Kvs) == 1 && key.Kvs[0].CreateRevision == t.Revision:
		t.Proved(sent)
	default:
		t.Disproved()
	}
	return nil
}
