package index

import (
	"cmp"
	"context"
	"slices"
	"time"
)

// reclaimEvery bounds how often memory is looked for: that takes time, and locks.
const reclaimEvery = time.Second

// mayReclaim reports whether it is time to look for memory. Then no other caller may for
// a while.
func (x *Index) mayReclaim() bool {
	now, next := x.now(), x.nextReclaim.Load()
	return now >= next && x.nextReclaim.CompareAndSwap(next, now+int64(reclaimEvery))
}

// reclaim looks for memory for a space: it removes the unused parts of all spaces. If
// that is not enough, it evicts half of the keys of the largest space, as far as no
// client uses them, if its namespace has more than a quarter of the memory and twice as
// much as the one that needs some.
func (x *Index) reclaim(ctx context.Context, needs *space) error {
	all := x.all()
	slices.SortFunc(all, func(a, b *space) int { return cmp.Compare(b.used.Load(), a.used.Load()) })
	before := x.used.Load()
	for _, s := range all {
		if err := s.reclaim(ctx); err != nil {
			return err
		}
	}
	if x.used.Load() < before || len(all) == 0 {
		return nil
	}
	s := all[0]
	used := s.account.used.Load()
	if used < x.o.MemoryBytes/4 || s.account != needs.account && used < 2*needs.account.used.Load() {
		return nil
	}
	s.mu.RLock()
	half := (s.byKey.len + 1) / 2
	s.mu.RUnlock()
	n, err := x.Evict(ctx, s.name, half)
	if n > 0 {
		x.o.Logger.Warn("the page index evicted keys because its memory is full",
			"namespace", s.name.Namespace, "set", s.name.Set, "keys", n, "cure", "a larger --pages-memory")
	}
	if err != nil {
		return err
	}
	return s.reclaim(ctx)
}

// reclaim shrinks the space if that is worthwhile.
func (s *space) reclaim(ctx context.Context) error {
	s.mu.Lock()
	now := s.index.now()
	for _, r := range s.ranks {
		s.sweep(r, now)
	}
	wasteful := s.wasteful()
	s.mu.Unlock()
	if !wasteful {
		return nil
	}
	if err := s.lockAlone(ctx); err != nil {
		return err
	}
	s.shrink()
	s.unlockAlone()
	return nil
}
