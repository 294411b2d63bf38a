package index

import (
	"cmp"
	"context"
	"slices"
)

// A log may describe more than fits into memory, because the bound was lowered. Then the
// start forgets keys: all that the largest space has so far, as often as need be, so that
// the newest stay. Their pages rest as if they had just been given up: no page of the
// rank is given out before clients have stopped using those that they learned of before.

// trim forgets all keys and holds of the largest space if the log does not fit into
// memory. It is called while the log is read.
func (x *Index) trim() {
	if x.used.Load() <= x.o.MemoryBytes {
		return
	}
	x.forgets = true
	s := slices.MaxFunc(x.all(), func(a, b *space) int { return cmp.Compare(a.used.Load(), b.used.Load()) })
	keys := s.byKey.len
	for _, r := range s.ranks {
		used := max(r.trimmed, len(r.owner))
		s.dropPages(r)
		r.trimmed = used
	}
	if keys > 0 {
		x.o.Logger.Warn("the page index forgets keys because its log does not fit into memory",
			"namespace", s.name.Namespace, "set", s.name.Set, "keys", keys, "cure", "a larger --pages-memory")
	}
	s.entries, s.byKey = table{}, newKeyMap(0)
	s.countMemory()
}

// logTrimmed logs, after the start, that the pages of forgotten keys belong to nobody. If
// that fails, the next start finds the keys again: their pages still hold them, or have
// a later record. Where other hosts follow the log it is not called: they have the keys that do
// not fit into the memory of this one, and one of them will lead again.
func (x *Index) logTrimmed() {
	for _, s := range x.all() {
		if err := s.logTrimmed(context.Background()); err != nil {
			x.o.Logger.Error("the page index could not log which keys it forgot", "err", err)
			return
		}
	}
}

func (s *space) logTrimmed(ctx context.Context) error {
	for {
		if err := s.lock(ctx); err != nil {
			return err
		}
		r := s.unlogged()
		if r == nil {
			s.mu.Unlock()
			return nil
		}
		from := max(0, r.toLog-trimBatch)
		rec := &record{kind: freed, rank: r.id}
		for page := from; page < r.toLog; page++ {
			if page >= len(r.owner) || r.owner[page] == 0 {
				rec.pages = append(rec.pages, uint32(page))
			}
		}
		if err := s.write(ctx, func(err error) {
			if err == nil {
				r.toLog = min(r.toLog, from)
			}
		}, rec); err != nil {
			return err
		}
	}
}

// unlogged returns a rank of which keys were forgotten, although the log may have them; or nil.
func (s *space) unlogged() *rank {
	for _, r := range s.ranks {
		if r.toLog > 0 {
			return r
		}
	}
	return nil
}

// trimBatch is how many pages one record of logTrimmed has at most.
const trimBatch = 1 << 16
