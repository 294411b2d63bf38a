package etcdlog

import (
	"context"
	"errors"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// A host that leads honours what all before it have promised, with whatever options they ran. So whoever begins to lead
// writes down what it promises, if it is more, in the transaction that makes it the leader. Once it has led for so long that nobody
// relies on those before, it writes down what it promises itself.

// ErrPromises: a host that has led meanwhile has promised more than the owner was told to keep. The log is to
// be made again, with what Recorded returns then.
var ErrPromises = errors.New("another host has promised longer times to clients")

// Recorded returns the most that hosts that have led have promised, for Options.Promised.
func Recorded(ctx context.Context, c *cluster.Cluster) (pageservice.Promises, error) {
	l := &Log{cluster: c, keys: keys{c.Prefix()}}
	answer, err := l.get(ctx, l.keys.promises(), 0)
	if err != nil || len(answer.Kvs) == 0 {
		return pageservice.Promises{}, err
	}
	var p promises
	err = decodeJSON(l.keys.promises(), answer.Kvs[0].Value, &p)
	return p.Promises, err
}

// promise returns what is written down when this host begins to lead, and whether that is something new.
func (l *Log) promise(before promises) (now promises, changed bool) {
	now = promises{stamp{jsonFormat, l.by}, before.And(l.o.Promises), l.o.World}
	return now, now.Promises != before.Promises || now.World != before.World
}

// kept returns an error if the owner does not know of all that was promised.
func (v *view) kept(o *Options) error {
	if !o.Promised.And(o.Promises).Keep(v.promises.Promises) {
		return ErrPromises
	}
	return nil
}

// relied returns for how long after a host began to lead clients may rely on what those before have promised.
func (l *leader) relied() time.Duration {
	p := l.promised
	return max(p.Lease, p.Reserve) + p.Quarantine + p.LateWrites + l.cluster.LeaseTTL()
}

// shrink writes down what this host promises, once nobody relies on more.
func (k *lookout) shrink(ctx context.Context) error {
	if k.shrunk || k.promised == k.o.Promises || host.SinceBoot()-k.since <= k.relied() {
		return nil
	}
	now := promises{stamp{jsonFormat, k.by}, k.o.Promises, k.o.World}
	_, err := k.fenced(ctx, k.term.Fence(), clientv3.OpPut(k.keys.promises(), encodeJSON(now)))
	k.shrunk = err == nil
	return err
}
