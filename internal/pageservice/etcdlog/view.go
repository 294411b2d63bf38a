package etcdlog

import (
	"context"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Reads are no transactions: a full etcd 3.4 answers none. They may be old; only an append proves that they are not.

// view is what etcd has of the log, at one revision.
type view struct {
	head     head  // Index 0: there is none
	seen     int64 // its revision
	lowest   uint64
	refs     snapshots
	refsSeen int64 // its revision
	promises promises
	revision int64 // of etcd
}

// get reads keys, at a revision if there is one.
func (l *Log) get(ctx context.Context, key string, revision int64, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	once, cancel := l.call(ctx)
	defer cancel()
	return l.cluster.Client().Get(once, key, append(options, clientv3.WithRev(revision))...)
}

// readHead reads only the head; at revision 0 the newest.
func (l *Log) readHead(ctx context.Context, revision int64) (v view, err error) {
	answer, err := l.get(ctx, l.keys.head(), revision)
	if err != nil {
		return v, err
	}
	v.revision = max(revision, answer.Header.Revision)
	if len(answer.Kvs) == 1 {
		v.seen = answer.Kvs[0].ModRevision
		v.head, err = decodeHead(l.keys.head(), answer.Kvs[0].Value)
	}
	return v, err
}

// view reads everything.
func (l *Log) view(ctx context.Context) (v view, err error) {
	if v, err = l.readHead(ctx, 0); err != nil {
		return v, err
	}
	answer, err := l.get(ctx, l.keys.snapshots(), v.revision)
	if err != nil {
		return v, err
	}
	if len(answer.Kvs) == 1 {
		v.refsSeen = answer.Kvs[0].ModRevision
		if v.refs, err = decodeSnapshots(l.keys.snapshots(), answer.Kvs[0].Value); err != nil {
			return v, err
		}
	}
	if answer, err = l.get(ctx, l.keys.promises(), v.revision); err != nil {
		return v, err
	}
	if len(answer.Kvs) == 1 {
		if err = decodeJSON(l.keys.promises(), answer.Kvs[0].Value, &v.promises); err != nil {
			return v, err
		}
	}
	answer, err = l.get(ctx, l.keys.log(), v.revision, clientv3.WithPrefix(), clientv3.WithLimit(1), clientv3.WithKeysOnly())
	if err != nil {
		return v, err
	}
	if len(answer.Kvs) == 1 {
		if v.lowest, err = l.keys.index(string(answer.Kvs[0].Key)); err != nil {
			return v, err
		}
	}
	if v.head.Index == 0 && v.lowest > 0 {
		return v, damaged("%s is missing, and the log begins with %d", l.keys.head(), v.lowest)
	}
	return v, nil
}

// usable returns the snapshots with which the state at the head can be had, newest first.
func (v *view) usable() (all []reference) {
	for _, r := range v.refs.Newest {
		if r.Index <= v.head.Index && r.Index+1 >= v.first() && r.Index >= v.head.Whole {
			all = append(all, r)
		}
	}
	return all
}

// first returns the first index that is still there, or would come next.
func (v *view) first() uint64 {
	if v.lowest == 0 {
		return v.head.Index + 1
	}
	return v.lowest
}

// needsNone reports whether the state can be had without a snapshot.
func (v *view) needsNone() bool { return v.head.Index == 0 || v.first() <= v.head.Whole }
