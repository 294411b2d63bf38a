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
// a later record.
func (x *Index) logTrimmed() {
	for _, s := range x.all() {
		for _, r := range s.ranks {
			for from := 0; from < r.trimmed; from += trimBatch {
				if err := s.logUnowned(r, from, min(from+trimBatch, r.trimmed)); err != nil {
					x.o.Logger.Error("the page index could not log which keys it forgot", "err", err)
					return
				}
			}
		}
	}
}

// logUnowned logs that the pages of a range that have no owner belong to nobody.
func (s *space) logUnowned(r *rank, from, to int) error {
	s.mu.Lock()
	rec := &record{kind: freed, rank: r.id}
	for page := from; page < to; page++ {
		if page >= len(r.owner) || r.owner[page] == 0 {
			rec.pages = append(rec.pages, uint32(page))
		}
	}
	return s.write(context.Background(), func(error) {}, rec)
}

// trimBatch is how many pages one record of logUnowned has at most.
const trimBatch = 1 << 16
