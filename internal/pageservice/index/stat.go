package index

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Stat returns the state of all spaces that have ranks, sorted by name.
func (x *Index) Stat(ctx context.Context) ([]pageservice.SpaceState, error) {
	if err := x.usable(ctx); err != nil {
		return nil, err
	}
	states := []pageservice.SpaceState{}
	for _, s := range x.all() {
		if state := s.stat(); len(state.Ranks) > 0 {
			states = append(states, state)
		}
	}
	return states, nil
}

// Counted returns the events of all spaces, for those who ask often: it waits for no lock of a space.
func (x *Index) Counted() (sum pageservice.Counters) {
	for _, s := range x.all() {
		sum.Add(s.counters.read())
	}
	return sum
}

func (s *space) stat() pageservice.SpaceState {
	now := s.index.now()
	s.mu.Lock()
	for _, r := range s.ranks {
		s.sweep(r, now)
	}
	s.assert()
	s.mu.Unlock()

	leased := s.leased(now)

	s.mu.RLock()
	defer s.mu.RUnlock()
	state := pageservice.SpaceState{
		Space:    s.name,
		World:    int(s.need),
		Keys:     int64(s.byKey.len),
		Complete: s.nComplete,
		Leased:   leased,
		Ranks:    []pageservice.RankPages{},
		Counters: s.counters.read(),
	}
	for _, r := range s.ranks {
		p := pageservice.RankPages{
			Rank: r.id, NumPages: r.numPages,
			Free: r.numFree(), Reserved: r.reserved, Keyed: r.keyed, Quarantined: r.quarantined,
		}
		p.KeptFree = min(s.toKeep(r), r.numKept())
		if r.closedUntil > now {
			p.KeptFree = 0
			p.Free, p.Quarantined = 0, p.Quarantined+p.Free
		}
		state.Ranks = append(state.Ranks, p)
	}
	slices.SortFunc(state.Ranks, func(x, y pageservice.RankPages) int { return cmp.Compare(x.Rank, y.Rank) })
	return state
}

// leased counts the keys that may not be evicted. It counts some at a time, so that
// others get the lock in between.
func (s *space) leased(now int64) (n int64) {
	for from, more := uint32(0), true; more; from += searchBound {
		s.mu.RLock()
		to := min(from+searchBound, s.entries.used)
		for id := from; id < to; id++ {
			if e := s.entries.at(id); e.on > 0 && e.leaseUntil.Load()+s.index.quarantine() > now {
				n++
			}
		}
		more = to < s.entries.used
		s.mu.RUnlock()
	}
	return n
}

func (c *counters) read() pageservice.Counters {
	return pageservice.Counters{
		Hits:         c.hits.Load(),
		Misses:       c.misses.Load(),
		Reserved:     c.reserved.Load(),
		Refused:      c.refused.Load(),
		Confirmed:    c.confirmed.Load(),
		Ignored:      c.ignored.Load(),
		Evicted:      c.evicted.Load(),
		Expired:      c.expired.Load(),
		Released:     c.released.Load(),
		DroppedPages: c.droppedPages.Load(),
	}
}

// List returns up to limit keys of a space that follow a key, in the order of keys.
func (x *Index) List(ctx context.Context, name pageservice.Space, after string, limit int) ([]pageservice.Entry, error) {
	if err := x.usable(ctx); err != nil {
		return nil, err
	}
	list := []pageservice.Entry{}
	s := x.find(name)
	if s == nil || limit <= 0 {
		return list, nil
	}
	now := x.now()
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, id := range s.after(after, limit) {
		e := s.entries.at(id)
		entry := pageservice.Entry{
			Key:      e.key,
			Pages:    map[int]int64{},
			Complete: e.visible() && !s.hidden,
			Idle:     time.Duration(now - max(0, e.lastUse.Load())),
			Lease:    time.Duration(max(0, e.leaseUntil.Load()+x.quarantine()-now)),
		}
		for _, r := range s.ranks {
			if r.has(id) {
				entry.Pages[r.id] = int64(r.page(id) - 1)
			}
		}
		list = append(list, entry)
	}
	return list, nil
}

// after returns the entries of the first limit keys after a key, in their order.
func (s *space) after(after string, limit int) []uint32 {
	var ids []uint32
	cut := func() {
		slices.SortFunc(ids, func(x, y uint32) int { return strings.Compare(s.entries.at(x).key, s.entries.at(y).key) })
		ids = ids[:min(len(ids), limit)]
	}
	for id, e := range s.entries.all {
		if e.key <= after && after != "" || e.on == 0 {
			continue
		}
		if ids = append(ids, id); len(ids) >= 2*limit+64 {
			cut()
		}
	}
	cut()
	return ids
}
