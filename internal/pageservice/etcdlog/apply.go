package etcdlog

import (
	"context"
	"errors"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// position is how far an owner has got.
type position struct {
	index   uint64 // of the last batch that was applied
	chain   chain
	unknown bool // the chain is: the log begins after it
	joiner  joiner

	// epoch is the batch with which the state began that this host's comes from: head's Whole then, or that of the host
	// that took the snapshot. What compaction drops as needless, states of different epochs may differ in.
	epoch uint64

	bytes int64           // of what was passed to the owner: a snapshot and batches
	at    map[uint64]mile // by index of checkpoint
}

// mile is what is noted at a checkpoint.
type mile struct {
	bytes int64
	state uint64 // hash; 0: not known
}

// point is a state that can be compared with other hosts'.
type point struct{ index, state uint64 }

// fetchBatches bounds how many batches are read at once. It is halved where the time was not enough.
const fetchBatches = 16

// fetch reads batches from an index on; fewer than there are, and none only where there is none. They are consecutive.
func (l *Log) fetch(ctx context.Context, from, to uint64) (values [][]byte, err error) {
	fewer := l.fewer.Load()
	answer, err := l.get(ctx, l.keys.batch(from), 0, clientv3.WithRange(l.keys.batch(to+1)), clientv3.WithLimit(fetchBatches>>fewer))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		l.fewer.Store(min(fewer+1, 4)) // the way may be too slow for so much
	}
	if err != nil {
		return nil, err
	}
	l.fewer.Store(max(fewer-1, 0))
	for i, kv := range answer.Kvs {
		if index, err := l.keys.index(string(kv.Key)); err != nil || index != from+uint64(i) {
			return values, errors.Join(err, errGap)
		}
		values = append(values, kv.Value)
	}
	if len(values) == 0 {
		return nil, errGap
	}
	return values, nil
}

// errGap: batches that were there have gone, because there is a snapshot of what they said.
var errGap = errors.New("the beginning of the log was dropped meanwhile")

// apply passes the records of the next batch to the owner.
func (f *follower) apply(value []byte) error {
	p := &f.position
	key := f.keys.batch(p.index + 1)
	b, sum, err := decodeBatch(value)
	switch {
	case errors.Is(err, ErrNewer):
		return fmt.Errorf("%s: %w", key, err)
	case err != nil:
		return damaged("%s: %v", key, err)
	case b.index != p.index+1:
		return damaged("%s: the batch has index %d", key, b.index)
	case b.prev != p.chain && !p.unknown && b.kind != anew:
		return damaged("%s: it was written after another batch %d than the one that this host has applied", key, p.index)
	}
	if b.kind == anew {
		f.owner.Reset()
		f.begins(b.index)
	}
	group, whole, err := p.joiner.add(&b)
	if err == nil && whole {
		err = frames(group, f.owner.Replay)
	}
	if err != nil {
		return damaged("%s, which host %q wrote with kv3fs %s: %v", key, b.by.Host, b.by.Version, err)
	}
	p.index, p.chain, p.unknown = b.index, sum, false
	p.bytes += int64(len(value))
	f.setState(func(s *State) { s.Applied, s.Term = p.index, b.term; s.Head = max(s.Head, p.index) })
	if b.kind == checkpoint {
		return f.checkpoint(string(b.body))
	}
	return nil
}

// load begins again: with the newest snapshot that can be read, or with the first record.
func (f *follower) load(ctx context.Context, v view) error {
	f.loaded = false
	if f.used {
		f.owner.Reset()
	}
	f.used = true
	f.position = position{at: map[uint64]mile{}}
	var errs []error
	for _, r := range v.usable() {
		err := f.loadSnapshot(ctx, r)
		if err == nil {
			f.position.index, f.position.chain, f.position.bytes = r.Index, r.Chain, r.Bytes
			f.position.at[r.Index] = mile{bytes: r.Bytes}
			f.begins(r.Epoch)
			f.loaded = true
			f.base = &r
			return nil
		}
		f.o.Logger.Error("page log: a snapshot cannot be used", "snapshot", r.File, "err", err)
		errs = append(errs, err)
		f.owner.Reset()
		if ctx.Err() != nil {
			return pageservice.ErrClosed
		}
	}
	if !v.needsNone() {
		return fmt.Errorf("%w (%w)", damaged("the log in etcd begins with batch %d, and no snapshot of what was before can be used: --pages-start-over begins anew and forgets all keys", v.first()), errors.Join(errs...))
	}
	f.base = nil
	f.begins(max(v.head.Whole, 1))
	if v.head.Whole > 0 {
		f.position.index, f.position.unknown = v.head.Whole-1, v.head.Whole > 1
	}
	f.loaded = true
	return nil
}

// begins notes with which batch the state begins.
func (f *follower) begins(epoch uint64) {
	f.position.epoch = epoch
	f.setState(func(s *State) { s.epoch = epoch })
}

// loadSnapshot passes a snapshot to the owner.
func (f *follower) loadSnapshot(ctx context.Context, r reference) error {
	// First without the owner, who must not be given what was never written.
	if err := readSnapshot(f.snapshotDir(), f.cluster.ID(), r, func([]byte) error { return ctx.Err() }); err != nil {
		return err
	}
	err := readSnapshot(f.snapshotDir(), f.cluster.ID(), r, func(rec []byte) error {
		if ctx.Err() != nil {
			return pageservice.ErrClosed
		}
		return f.owner.Replay(rec)
	})
	if err != nil {
		return err
	}
	if state := f.owner.StateHash(); r.Version == f.by.Version && f.owner.Whole() && state != r.State {
		return damaged("%s: its records give the state %x; want %x", r.File, state, r.State)
	}
	return nil
}
