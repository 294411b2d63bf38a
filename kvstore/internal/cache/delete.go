package cache

import (
	"context"
	"errors"
	"fmt"

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
	if err := s.drop(keys, s.dropAny); err != nil {
		return err
	}
	others, err := s.doomed(keys)
	if err != nil {
		return err
	}
	if err := s.waitWritten(ctx, s.unwritten(keys), others); err != nil {
		return err
	}
	err = s.callNext(ctx, func(ctx context.Context) error { return s.next.Delete(ctx, keys) })
	if err != nil {
		return err
	}
	return s.drop(keys, s.dropCopy)
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

// unwritten returns those of these blocks that next may be storing. They are not in the
// table any more if an earlier Delete has hidden them, or if the memory is broken.
func (s *Store) unwritten(keys []kv.Key) (own []*dirtyBlock) {
	wanted := setOf(keys)
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.write.all {
		if d.taken && wanted[d.key] {
			own = append(own, d)
		}
	}
	return own
}

// doomed returns the slots, and their generations, of those of these blocks that the
// next store of another process may be storing. This Delete or an earlier one has doomed
// them.
func (s *Store) doomed(keys []kv.Key) (map[int32]uint32, error) {
	others := map[int32]uint32{}
	if !s.table.Shared() {
		return others, nil
	}
	wanted := setOf(keys)
	for first, looked := int32(0), 1; looked > 0; first += int32(looked) {
		s.mu.Lock()
		looked = 0
		err := s.do(func() { looked = s.table.Doomed(first, listAtOnce, wanted, others) })
		s.mu.Unlock()
		if err != nil && !errors.Is(err, table.ErrBroken) {
			return nil, fmt.Errorf("kvstore: cache: blocks cannot be deleted: %w: %w", err, kv.ErrTimeout)
		}
	}
	return others, nil
}

func setOf(keys []kv.Key) map[kv.Key]bool {
	set := make(map[kv.Key]bool, len(keys))
	for _, key := range keys {
		set[key] = true
	}
	return set
}

// dropAny removes a block from memory, whatever its state. The lock and the table are
// held. A block that is being assembled stays: its Save may win.
func (s *Store) dropAny(key kv.Key) {
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
	case !h.Mine, d != nil && d.gen == h.Gen && d.taken:
		s.table.Doom(slot)
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
