package etcdlog

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/cluster"
	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// lead makes this host, which was elected, the one that appends.
func (f *follower) lead(ctx context.Context, term *cluster.Term) (*leader, error) {
	ctx, cancel := context.WithTimeout(ctx, leadTerms*f.cluster.LeaseTTL())
	defer cancel()
	// The shared directory may hang, which must not keep the lead from others; nor when the log is closed meanwhile.
	resigned := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(resigned); f.resign(term) })
	inTime := sync.OnceValue(func() bool {
		if stop() {
			return true
		}
		<-resigned
		return false
	})
	defer inTime()
	f.setState(func(s *State) { s.Role = Electing })
	for ; ; pause(ctx, retryPause) {
		if err := errors.Join(term.Reason(), ctx.Err()); err != nil {
			return nil, fmt.Errorf("elected, but not for long enough: %w", err)
		}
		err := f.identify(ctx)
		id := f.cluster.ID()
		var v view
		if err == nil {
			v, err = f.catchUp(ctx)
		}
		if errors.Is(err, cluster.ErrEmptied) || errors.Is(err, cluster.ErrOtherCluster) || errors.Is(err, ErrPromises) || refused(err) {
			return nil, err // others may be able to lead meanwhile
		}
		if errors.Is(err, pageservice.ErrCorrupt) {
			if fresh, unread := f.isNewest(ctx, v); unread == nil && fresh {
				return nil, err
			}
			continue
		}
		if err != nil {
			continue // members may be behind, or etcd without a leader
		}
		missing, start, err := f.admit(ctx, v)
		if err != nil {
			if fresh, err := f.isNewest(ctx, v); err != nil || !fresh {
				continue
			}
			return nil, err
		}
		a := &appender{Log: f.Log, term: term, head: v.head, seen: v.seen}
		first := batch{kind: leads, last: true}
		if v.head.Index == 0 {
			a.head.Whole = 1
		}
		switch {
		case missing != "" && start > 0:
			first.kind = anew // what is there, snapshots included, is another cluster's, which hosts that begin later cannot read
			f.owner.Reset()
			f.used = false
			a.head.Index, a.head.Whole = start, start+1
			f.position = position{at: map[uint64]mile{}}
			f.base = nil
		case v.head.Index == 0 && missing == "":
			a.head.Cluster = id
		}
		var more []clientv3.Op
		now, changed := f.promise(v.promises)
		if changed {
			more = append(more, clientv3.OpPut(f.keys.promises(), encodeJSON(now)))
		}
		err = a.append(ctx, first, nil, more...)
		if errors.Is(err, errMoved) {
			continue // what was read was old
		}
		if err != nil {
			return nil, err
		}
		// What is left is done in memory, and takes another host as long.
		if !inTime() {
			return nil, fmt.Errorf("elected, but not for long enough: %w", term.Reason())
		}
		if missing != "" {
			f.owner.Missing(missing)
		}
		if err := f.owner.Replayed(); err != nil {
			return nil, damaged("%v", err)
		}
		return newLeader(f, a, id, now.Promises, missing != ""), nil
	}
}

// refused reports whether no repetition helps against an error: what is there was written by a newer kv3fs, or etcd does not
// permit a host what it needs.
func refused(err error) bool {
	return errors.Is(err, cluster.ErrNewer) || errors.Is(err, rpctypes.ErrPermissionDenied) || errors.Is(err, rpctypes.ErrUserEmpty)
}

// isNewest reports whether the head is still what v says, with an answer that no member can give from the past.
func (f *follower) isNewest(ctx context.Context, v view) (bool, error) {
	revision, err := f.settled(ctx)
	if err != nil {
		return false, err
	}
	now, err := f.readHead(ctx, revision)
	return now.seen == v.seen, err
}

// admit returns an error if the log is not the one that this cluster has written, although this host has applied all of it. If the
// cluster has begun anew, or after another index, it returns what is missing, and the index after which the log goes on: indices
// never come again.
func (f *follower) admit(ctx context.Context, v view) (missing string, start uint64, err error) {
	m, err := readMark(f.o.Dir)
	if err != nil {
		return "", 0, err
	}
	over := v.head.Index > 0 && v.head.Cluster != f.cluster.ID() || v.head.Index == 0 && m.Index > 0 && m.Cluster != f.cluster.ID()
	if over {
		return f.keys.prefix + ": " + cmp.Or(f.cluster.Before(), "it was begun anew"), max(v.head.Index, m.Index, f.most.Index), nil
	}
	if before := f.cluster.Before(); v.head.Index == 0 && m.Index == 0 && before != "" {
		return f.keys.prefix + ": " + before, 0, nil
	}
	if v.head.Index > 0 && m.Cluster != v.head.Cluster {
		return "", v.head.Index, nil // of the cluster before: a leader that began anew has left before it marked that
	}
	if v.head.Index < m.Index {
		return "", 0, f.shorter(v, m)
	}
	if m.Index == 0 || m.Index < v.first() {
		return "", v.head.Index, nil
	}
	answer, err := f.get(ctx, f.keys.batch(m.Index), v.revision)
	if err != nil {
		return "", 0, err
	}
	if len(answer.Kvs) == 1 && !bytes.HasSuffix(answer.Kvs[0].Value, m.Chain[:]) {
		return "", 0, damaged("the log in etcd (%s) has another batch %d than this cluster has written: %s", f.keys.prefix, m.Index, restored)
	}
	return "", v.head.Index, nil
}
