package index

import (
	"context"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Exists reports which keys every needed rank has confirmed. It leases those for a short
// time (Options.Hold), so that they are still there when the client locates them.
func (x *Index) Exists(ctx context.Context, name pageservice.Space, keys []string) ([]bool, error) {
	if err := x.usable(ctx); err != nil {
		return nil, err
	}
	batch, err := keysOf(keys)
	if err != nil {
		return nil, err
	}
	defer batch.release()
	found := make([]bool, len(keys))
	s := x.find(name)
	if s == nil {
		return found, nil
	}
	now := x.now()
	s.mu.RLock()
	defer s.mu.RUnlock()
	hits := s.leaseVisible(batch, now, now+int64(x.o.Hold), func(i int, _ uint32) { found[i] = true })
	s.counters.misses.Add(int64(len(keys) - hits))
	return found, nil
}

// Locate returns the page of each visible key on a rank, or None, and leases it.
func (x *Index) Locate(ctx context.Context, name pageservice.Space, rankID int, keys []string) ([]int64, error) {
	if err := x.usable(ctx); err != nil {
		return nil, err
	}
	batch, err := keysOf(keys)
	if err != nil {
		return nil, err
	}
	defer batch.release()
	s := x.find(name)
	if s == nil {
		return nil, pageservice.ErrUnknownRank
	}
	if err := s.noteAlive(ctx, rankID); err != nil {
		return nil, err
	}
	found := make([]int64, len(keys))
	for i := range found {
		found[i] = pageservice.None
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	r := s.ranks[rankID]
	if r == nil { // forgotten since
		return nil, pageservice.ErrUnknownRank
	}
	now := x.now()
	hits := 0
	s.leaseVisible(batch, now, now+x.lease(), func(i int, id uint32) {
		if r.has(id) {
			found[i] = int64(r.page(id) - 1)
			hits++
		}
	})
	s.counters.hits.Add(int64(hits))
	s.counters.misses.Add(int64(len(keys) - hits))
	return found, nil
}

// noteAlive notes that the engine of a rank is alive.
func (s *space) noteAlive(ctx context.Context, rankID int) error {
	s.mu.RLock()
	r := s.ranks[rankID]
	known, stale := r != nil, r != nil && r.stale
	s.mu.RUnlock()
	if !known {
		return pageservice.ErrUnknownRank
	}
	if !stale {
		return nil
	}
	if err := s.lock(ctx); err != nil {
		return err
	}
	defer s.mu.Unlock()
	_, err := s.rankOf(rankID)
	return err
}

// leaseVisible leases the visible keys of a batch, and calls each for them. The caller holds the
// lock for reading.
func (s *space) leaseVisible(keys *batch, now, leaseUntil int64, each func(i int, id uint32)) (n int) {
	if s.hidden {
		return 0
	}
	keys.lookUp(s)
	for i, id := range keys.ids {
		if id == none {
			continue
		}
		e := s.entries.at(id)
		if !e.visible() {
			continue
		}
		e.extend(leaseUntil)
		e.lastUse.Store(now)
		n++
		each(i, id)
	}
	return n
}
