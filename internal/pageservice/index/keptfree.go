package index

// A restart protects all keys for a while, and every page that was reserved or given up, because clients may be
// using them. A rank whose pages are all in use would have no page for a new key. So some of its pages
// (Options.Free) are kept free while keys can be evicted, and the log says that they are: either it says
// nothing of them, because they were never used, or a record says that they belong to nobody and have rested. They
// are given out last, when there is no other page, and replaced by the next reservations that find keys to evict.

// refillMost is how many pages one reservation sets free beyond those that it takes. So whoever reserves pages after
// a restart does not wait for all that have to be replaced.
const refillMost = 1 << 10

// toKeep returns how many pages of a rank are to be kept free.
func (s *space) toKeep(r *rank) int64 { return int64(s.index.o.Free * float64(r.numPages)) }

// numKept returns the number of pages that a restart would find free.
func (r *rank) numKept() int64 {
	return int64(len(r.kept)) + max(0, r.numPages-int64(max(len(r.owner), r.mentioned)))
}

// refill holds the pages that are to be kept free from now on, while that is being logged.
type refill struct {
	pages   []uint32 // free ones, held meanwhile
	victims []uint32 // entries that are evicted, on all ranks
}

// refill finds pages to be kept free: free ones of which the log says something else, then those of
// keys, which it marks.
func (s *space) refill(r *rank, now int64) (f refill) {
	n := min(s.toKeep(r)-r.numKept()-r.refilling, refillMost)
	if n <= 0 {
		return f
	}
	for soft := r.numFree() - r.numKept(); soft > 0 && int64(len(f.pages)) < n; soft-- {
		f.pages = append(f.pages, r.take(hold{state: deleted, busy: true}))
	}
	f.victims, _ = s.victims(r, int(n)-len(f.pages), now)
	r.refilling += int64(len(f.pages) + len(f.victims))
	return f
}

func (s *space) refillRecords(r *rank, f *refill) []*record {
	recs := s.pagesOf(f.victims, rested)
	if len(f.pages) > 0 {
		recs = append(recs, &record{kind: rested, rank: r.id, pages: f.pages})
	}
	return recs
}

// refilled applies a refill, or undoes it.
func (s *space) refilled(r *rank, f *refill, err error) {
	r.refilling -= int64(len(f.pages) + len(f.victims))
	for _, page := range f.pages {
		r.drop(page)
		if err != nil {
			r.release(page)
		} else {
			r.kept = append(r.kept, page)
		}
	}
	if err != nil {
		s.unmark(f.victims)
		return
	}
	for _, id := range f.victims {
		for _, q := range s.ranks {
			if q.has(id) {
				q.kept = append(q.kept, s.detach(q, id))
			}
		}
	}
	s.counters.evicted.Add(int64(len(f.victims)))
}
