package tier

import (
	"context"
	"errors"
	"fmt"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// loading is a batch of Load.
type loading struct {
	*batch.Batch
	s *Store
}

// reading is a load from far while it is under way. What is deleted meanwhile is not kept.
type reading struct {
	forgotten map[kv.Key]bool // guarded by the store's lock
}

// Load is kv.Store's. Which store a block comes from is decided once for the batch: what it
// returns of a block is of one Save.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	b, err := s.group.Begin(ctx, batch.Load, shards, s.loads)
	if err != nil {
		return nil, err
	}
	l := &loading{b, s}
	var keys []kv.Key
	isNear := map[kv.Key]bool{}
	for i := range shards {
		if key := b.Shard(i).Key; !isNear[key] {
			isNear[key] = true
			keys = append(keys, key)
		}
	}
	found := make([]bool, len(keys))
	if s.near.Lookup(b.Context(), keys, found) != nil {
		clear(found)
	}
	for i, key := range keys {
		isNear[key] = found[i]
	}
	var here, there []int
	for i := range shards {
		if isNear[b.Shard(i).Key] {
			here = append(here, i)
		} else {
			there = append(there, i)
		}
	}
	if len(here) > 0 {
		s.group.Go(func() { l.fromNear(here) })
	}
	if len(there) > 0 { // of which none is settled, so that the batch has not left
		s.group.Go(func() { l.fromFar(there, nil) })
	}
	return b.Task, nil
}

// subset returns some of the shards.
func (l *loading) subset(which []int) []kv.Shard {
	some := make([]kv.Shard, len(which))
	for n, i := range which {
		some[n] = l.Shard(i)
	}
	return some
}

// fromNear loads from the near store, and what fails there from far.
func (l *loading) fromNear(which []int) {
	t, err := l.s.near.Load(l.Context(), l.subset(which))
	if err != nil {
		why := map[int]error{}
		for _, i := range which {
			why[i] = err
		}
		l.afterNear(which, why, nil)
		return
	}
	var failed []int
	why := map[int]error{}
	given := map[kv.Key]uint64{} // versions of blocks of which a shard was loaded
	for n, err := range t.All() {
		i := which[n]
		switch {
		case err == nil:
			given[l.Shard(i).Key] = t.Version(n)
			l.SetVersion(i, t.Version(n))
			l.Settle(i, nil)
		case errors.Is(err, kv.ErrAbandoned):
			l.Settle(i, named(l.s.nearName, err)) // its buffer cannot be loaded into
		default:
			failed = append(failed, i)
			why[i] = err
		}
	}
	if len(failed) > 0 {
		l.afterNear(failed, why, given)
	}
}

// afterNear loads from far what the near store has failed to load. The near store has given
// shards of some blocks already: the others must be of the same Save.
func (l *loading) afterNear(failed []int, why map[int]error, given map[kv.Key]uint64) {
	if err := l.Ended(); err != nil {
		l.SettleAll(failed, err)
		return
	}
	var plain []int
	parts := map[kv.Key][]int{}
	for _, i := range failed {
		key := l.Shard(i).Key
		if _, partly := given[key]; partly {
			parts[key] = append(parts[key], i)
		} else {
			plain = append(plain, i)
		}
	}
	patience, cancel := context.WithTimeout(l.Context(), l.s.o.Timeout) // of all, for memory
	defer cancel()
	for key, which := range parts {
		l.rest(patience, key, given[key], which, why)
	}
	if len(plain) > 0 {
		l.fromFar(plain, why)
	}
}

// fromFar loads from far. why has the errors of the near store, if it was asked.
func (l *loading) fromFar(which []int, why map[int]error) {
	s := l.s
	if err := s.health.err(); err != nil {
		l.SettleAll(which, err)
		return
	}
	r := s.beginReading()
	defer s.endReading(r)
	t, err := s.far.Load(l.Context(), l.subset(which))
	if err != nil {
		s.health.note(err)
		l.SettleAll(which, named(s.farName, err))
		return
	}
	for n, err := range t.All() {
		i := which[n]
		shard := l.Shard(i)
		s.health.noteLoad(shard, err)
		if err != nil {
			l.Settle(i, l.worse(why[i], err))
			continue
		}
		s.passed.Add(int64(len(shard.Buf)))
		s.healed(why[i])
		s.keep(r, shard, t.Version(n))
		l.SetVersion(i, t.Version(n))
		l.Settle(i, nil)
	}
}

// worse returns the error of a shard that neither store could load.
func (l *loading) worse(near, far error) error {
	if errors.Is(far, kv.ErrMiss) && errors.Is(near, kv.ErrCorrupt) && !errors.Is(far, kv.ErrCorrupt) {
		return near
	}
	return named(l.s.farName, far)
}

// healed logs damage of the near store that no caller sees.
func (s *Store) healed(why error) {
	var damaged *kv.CorruptError
	if errors.As(why, &damaged) {
		s.o.Logger.Warn("damaged block, loaded from the next store", "store", s.nearName, "key", damaged.Key.String(), "where", damaged.Where, "found", damaged.What, "next", s.farName)
	}
}

// rest loads the rest of a block of which the near store has given a part before it failed.
// The whole block is read from far to see whether it is the same: versions of the near store
// are digests of the content.
func (l *loading) rest(patience context.Context, key kv.Key, version uint64, which []int, why map[int]error) {
	s := l.s
	fail := func(err error) {
		if errors.Is(err, kv.ErrAbandoned) { // it is the memory here that is in use, not the caller's
			err = fmt.Errorf("%w: %v", kv.ErrTimeout, err)
		}
		for _, i := range which {
			l.Settle(i, l.worse(why[i], err))
		}
	}
	if err := s.health.err(); err != nil {
		fail(err)
		return
	}
	buf, err := s.memory.take(patience, s.dropIdle)
	if err != nil {
		if patience.Err() != nil && l.Ended() == nil {
			err = fmt.Errorf("%w: no memory to heal a block of %s", kv.ErrTimeout, s.nearName)
		}
		fail(err)
		return
	}
	err = s.readWhole(l.Context(), key, buf)
	if err != nil {
		s.memory.put(buf, err)
		fail(err)
		return
	}
	sums := make([]uint64, s.layout.Shards())
	for i := range sums {
		sums[i] = blockhead.Sum(s.part(buf, i))
	}
	if (&blockhead.Head{Sums: sums}).Version() != version {
		s.memory.put(buf, nil)
		fail(kv.ErrMiss)
		return
	}
	for _, i := range which {
		shard := l.Shard(i)
		copy(shard.Buf, s.part(buf, shard.Index))
		s.passed.Add(int64(len(shard.Buf)))
		s.healed(why[i])
		l.SetVersion(i, version)
		l.Settle(i, nil)
	}
	s.memory.put(buf, nil)
	s.want(key) // near again
}

// part returns the bytes of a shard in a block.
func (s *Store) part(block []byte, index int) []byte {
	return block[int64(index)*s.layout.ShardBytes : int64(index+1)*s.layout.ShardBytes]
}

// wholeOf returns the shards of a block in a buffer.
func (s *Store) wholeOf(key kv.Key, buf []byte) []kv.Shard {
	return s.layout.ByBlock([]kv.Key{key}, [][]byte{buf})
}

// readWhole loads a block from far.
func (s *Store) readWhole(ctx context.Context, key kv.Key, buf []byte) error {
	shards := s.wholeOf(key, buf)
	t, err := s.far.Load(ctx, shards)
	if err == nil {
		err = outcome(t)
	}
	s.health.noteLoad(shards[0], err)
	return err
}

// outcome waits for a task and returns its worst error: that a buffer may still be in use.
func outcome(t *kv.Task) (first error) {
	for _, err := range t.All() {
		if err != nil && (first == nil || errors.Is(err, kv.ErrAbandoned)) {
			first = err
		}
	}
	return first
}

func (s *Store) beginReading() *reading {
	r := &reading{forgotten: map[kv.Key]bool{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reading[r] = struct{}{}
	return r
}

func (s *Store) endReading(r *reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.reading, r)
}
