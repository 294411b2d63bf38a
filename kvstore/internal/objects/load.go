package objects

import (
	"cmp"
	"context"
	"errors"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// mostGetBytes bounds what one call of Get reads, so that shards land one after the other.
const mostGetBytes = 8 << 20

// Load implements kv.Store. It gets the record of each block, then the shards, straight
// into their buffers.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	b, err := s.group.Begin(ctx, batch.Load, shards, s.limit)
	if err != nil {
		return nil, err
	}
	s.group.Go(func() {
		s.eachBlock(shards, func(places []int) {
			l := &loading{Batch: b, store: s, key: shards[places[0]].Key}
			l.block(places)
		})
	})
	return b.Task, nil
}

// loading is a block of a batch of loads.
type loading struct {
	*batch.Batch
	store *Store
	key   kv.Key
	head  blockhead.Head
	rest  error // what all shards that are left are settled with; nil while they go on
}

func (l *loading) block(places []int) {
	if err := l.readHead(); err != nil {
		l.SettleAll(places, err)
		return
	}
	for len(places) > 0 {
		run := l.Run(places[0])
		n := 1
		for n < len(places) && places[n] == run.First+run.N && l.Extend(&run, mostGetBytes) {
			n++
		}
		places = places[n:]
		l.run(run)
	}
}

// readHead reads the record of the block.
func (l *loading) readHead() error {
	if err := l.Ended(); err != nil {
		return err
	}
	head, err := l.getHead()
	if err == kv.ErrMiss {
		there, failed := l.store.has(l.Context(), []kv.Key{l.key})
		if failed != nil || !there[0] {
			return cmp.Or(failed, err)
		}
		if head, err = l.getHead(); err == kv.ErrMiss { // it is not only just being saved
			return l.damaged("it is cut short")
		}
	}
	if errors.Is(err, errNoHead) {
		return l.damaged(err.Error())
	}
	l.head = head
	return err
}

// errNoHead says that an object does not begin with the record of its block.
var errNoHead = errors.New("it does not begin with the block's record")

func (l *loading) getHead() (head blockhead.Head, err error) {
	s, raw := l.store, make([]byte, blockhead.Size)
	if err := s.get(l.Context(), l.key, 0, raw); err != nil {
		return head, err
	}
	if err := head.Decode(raw); err != nil {
		return head, errors.Join(errNoHead, err)
	}
	if err := head.Match(s.o.Namespace, l.key, s.o.Layout); err != nil {
		return head, errors.Join(errNoHead, err)
	}
	return head, nil
}

func (s *Store) get(ctx context.Context, key kv.Key, off int64, buf []byte) error {
	name := s.name(key)
	return s.call(ctx, "Get", func(ctx context.Context) error { return s.backend.Get(ctx, name, off, buf) })
}

// run loads shards that lie beside each other.
func (l *loading) run(r batch.Run) {
	if l.rest != nil {
		l.SettleRun(r, l.rest)
		return
	}
	if err := l.Ended(); err != nil {
		l.SettleRun(r, err)
		return
	}
	s, index := l.store, l.Shard(r.First).Index
	err := s.get(l.Context(), l.key, blockhead.Size+int64(index)*s.o.Layout.ShardBytes, r.Buf)
	switch {
	case errors.Is(err, workerpool.ErrOverdue):
		l.rest = err // or each of them would wait as long
		err = kv.Abandoned("a call of store " + s.o.Name + " has not returned")
	case err == kv.ErrMiss:
		err = l.gone("it is cut short")
	case err == nil && s.o.Checksums == kv.ChecksumsOff:
		err = l.unchanged()
	}
	if err != nil {
		l.SettleRun(r, err)
		return
	}
	for n := range r.N {
		i := r.First + n
		if s.o.Checksums != kv.ChecksumsOff {
			shard := l.Shard(i)
			if err := l.head.Verify(shard.Index, shard.Buf); err != nil {
				if l.rest == nil {
					l.rest = l.gone(err.Error())
				}
				l.Settle(i, l.rest)
				continue
			}
		}
		l.SetVersion(i, l.head.Version())
		l.Settle(i, nil)
	}
}

// unchanged returns a miss if another object has the name since the record was read. Checksums
// would tell.
func (l *loading) unchanged() error {
	now, err := l.getHead()
	if errors.Is(err, errNoHead) || err == nil && now.Version() != l.head.Version() {
		return kv.ErrMiss
	}
	return err
}

// gone returns the error of a block that is not what its record says: a miss if it was
// deleted or replaced since the record was read, else damage.
func (l *loading) gone(what string) error {
	now, err := l.getHead()
	switch {
	case errors.Is(err, errNoHead):
	case err != nil:
		return err
	case now.Version() != l.head.Version():
		return kv.ErrMiss
	}
	return l.damaged(what)
}

// damaged removes a damaged object, so that the next save stores the block again.
func (l *loading) damaged(what string) error {
	s := l.store
	s.count.CorruptBlocks.Add(1)
	name := s.name(l.key)
	l.rest = &kv.CorruptError{Key: l.key, Where: "object " + name + " of store " + s.o.Name, What: what}
	if err := s.remove(context.WithoutCancel(l.Context()), []string{name}); err != nil {
		l.rest = errors.Join(l.rest, err)
	}
	return l.rest
}
