package cache

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Delete is kv.Store's. A block may be in memory, on its way to next, on its way from
// next, and in next. So Delete takes three steps:
//
//  1. What is in memory goes. A block that waits to be written is not written; one that
//     next is storing just now is waited for, because next could otherwise store it
//     after deleting it.
//  2. Next deletes.
//  3. What came from next during the first steps goes. A block that was saved meanwhile
//     stays: its Save won.
func (s *Store) Delete(ctx context.Context, keys []kv.Key) error {
	if err := s.group.Enter(); err != nil {
		return err
	}
	defer s.group.Leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	w := deletion{others: map[int32]uint32{}}
	if err := s.drop(keys, func(key kv.Key) { s.dropAny(key, &w) }); err != nil {
		return err
	}
	if s.table.Broken() {
		w.own = s.unwritten(keys)
	}
	if err := s.waitWritten(ctx, w.own, w.others); err != nil {
		return err
	}
	err := s.callNext(ctx, func(ctx context.Context) error { return s.next.Delete(ctx, keys) })
	if err != nil {
		return err
	}
	return s.drop(keys, s.dropCopy)
}

// deletion is what a Delete waits for.
type deletion struct {
	own    []*dirtyBlock
	others map[int32]uint32 // slots of other processes, and their generations
}

// drop calls fn for each key, with the lock and the table held. It releases both now and
// then. Memory that is broken has no blocks.
func (s *Store) drop(keys []kv.Key, fn func(kv.Key)) error {
	for len(keys) > 0 {
		n := min(planAtOnce, len(keys))
		s.mu.Lock()
		err := s.do(func() {
			for _, key := range keys[:n] {
				fn(key)
			}
		})
		s.spaceChanged()
		s.mu.Unlock()
		if err != nil && !errors.Is(err, table.ErrBroken) {
			return fmt.Errorf("kvstore: cache: blocks cannot be deleted: %w: %w", err, kv.ErrTimeout)
		}
		keys = keys[n:]
	}
	return nil
}

// unwritten returns those of these blocks that next may be storing. It is for memory that
// is broken, in which nothing can be looked up.
func (s *Store) unwritten(keys []kv.Key) (own []*dirtyBlock) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.write.all {
		if slices.Contains(keys, d.key) {
			own = append(own, d)
		}
	}
	return own
}

// dropAny removes a block from memory, whatever its state. The lock and the table are
// held. A block that is being assembled stays: its Save may win.
func (s *Store) dropAny(key kv.Key, w *deletion) {
	slot, ok := s.table.Find(key)
	if !ok {
		return
	}
	h := s.table.Head(slot)
	if h.State == table.Unsaved {
		s.table.Become(slot, table.Free)
		return
	}
	if h.State != table.Dirty {
		s.dropCopy(key)
		return
	}
	d := s.write.all[slot]
	switch {
	case !h.Mine:
		s.table.Doom(slot)
		w.others[slot] = h.Gen
	case d != nil && d.gen == h.Gen && d.taken:
		s.table.Doom(slot)
		w.own = append(w.own, d)
	default:
		s.table.Become(slot, table.Free)
		if d != nil && d.gen == h.Gen {
			s.finish(d, nil)
		}
	}
}

// dropCopy removes what memory has of a block that next has. The lock and the table are
// held.
func (s *Store) dropCopy(key kv.Key) {
	slot, ok := s.table.Find(key)
	if !ok {
		return
	}
	switch s.table.Head(slot).State {
	case table.Clean, table.Partial:
		s.table.Become(slot, table.Free)
	case table.Loading:
		s.table.Doom(slot)
	}
}
