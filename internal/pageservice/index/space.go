package index

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// space is one set of keys, and the ranks that have pages for them.
type space struct {
	name    pageservice.Space
	index   *Index
	account *account     // of its namespace
	used    atomic.Int64 // see countMemory

	// mu guards what follows. Exists and Locate hold it for reading, and write only
	// atomics. No caller holds it while waiting for the disk.
	mu      sync.RWMutex
	byKey   *keyMap
	entries table
	ranks   map[int]*rank

	world int    // how many ranks a key needs to be complete, if that is fixed
	need  uint32 // how many it needs now; 0 while no rank counts

	// closedUntil is when the pages of forgotten ranks may be written again; 0 once the log says so.
	closedUntil int64
	discarded   bool // it had no rank, and was removed from Index.spaces

	nComplete int64 // keys that all needed ranks have

	hidden bool // no key is found until all are cleared

	inflight  int           // changes that are being logged
	exclusive bool          // one change excludes all others, which wait
	settled   chan struct{} // closed when a change has ended

	counters counters
	changes  int // see assert
}

type counters struct {
	hits, misses, reserved, refused, confirmed, ignored, evicted, expired, released, droppedPages atomic.Int64
}

func newSpace(x *Index, name pageservice.Space, expect int) *space {
	world := 0
	if name.Set == pageservice.VLLM {
		world = x.o.World
	}
	return &space{
		name:    name,
		world:   world,
		index:   x,
		byKey:   newKeyMap(expect),
		ranks:   map[int]*rank{},
		settled: make(chan struct{}),
	}
}

// lock locks the space for a change, once no exclusive one is under way.
func (s *space) lock(ctx context.Context) error {
	s.mu.Lock()
	return s.awaitOthers(ctx)
}

// lockAgain releases the lock until some change has ended. After an error the lock is
// not held.
func (s *space) lockAgain(ctx context.Context) error {
	if err := s.await(ctx); err != nil {
		return err
	}
	return s.awaitOthers(ctx)
}

// yield lets others take the lock in between. After an error the lock is not held.
func (s *space) yield(ctx context.Context) error {
	s.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	return s.lock(ctx)
}

func (s *space) awaitOthers(ctx context.Context) error {
	for s.exclusive {
		if err := s.await(ctx); err != nil {
			return err
		}
	}
	return nil
}

// lockAlone locks the space for an exclusive change, once no other is under way.
func (s *space) lockAlone(ctx context.Context) error {
	if err := s.lock(ctx); err != nil {
		return err
	}
	s.exclusive = true
	for s.inflight > 0 {
		if err := s.await(ctx); err != nil {
			s.mu.Lock()
			s.unlockAlone()
			return err
		}
	}
	return nil
}

func (s *space) unlockAlone() {
	s.exclusive = false
	s.settle()
	s.mu.Unlock()
}

// await waits, without the lock, until some change has ended. If ctx ends first, it
// returns the error, and the lock is not held.
func (s *space) await(ctx context.Context) error {
	settled := s.settled
	s.mu.Unlock()
	select {
	case <-settled:
		s.mu.Lock()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// settle wakes the callers that wait for a change to end.
func (s *space) settle() {
	close(s.settled)
	s.settled = make(chan struct{})
}

// write makes records durable. The caller holds the lock, and write releases it. Then
// apply is called with the lock and the outcome: it does what the records say, or
// undoes what was planned.
func (s *space) write(ctx context.Context, apply func(err error), recs ...*record) error {
	var logged []*rank
	for _, r := range s.ranks {
		if r.unlogged {
			logged = append(logged, r)
			recs = append([]*record{s.rankRecord(r)}, recs...)
		}
	}
	s.inflight++
	wait := s.index.log.Append(func(err error) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.inflight--
		for _, r := range logged {
			r.unlogged = r.unlogged && err != nil
		}
		apply(err)
		s.countMemory()
		s.assert()
		s.settle()
	}, s.encode(recs)...)
	s.countMemory()
	s.mu.Unlock()
	return outcome(ctx, wait(ctx))
}

func (s *space) encode(recs []*record) [][]byte {
	all := make([][]byte, len(recs))
	for i, rec := range recs {
		rec.space = s.name
		all[i] = rec.encode()
	}
	return all
}

// rankOf returns a rank and notes that its engine is alive. The caller holds the lock.
func (s *space) rankOf(id int) (*rank, error) {
	r := s.ranks[id]
	if r == nil {
		return nil, pageservice.ErrUnknownRank
	}
	reopened := r.closedUntil != 0 && r.closedUntil <= s.index.now()
	if reopened {
		r.closedUntil = 0
	}
	if r.stale || reopened {
		if r.stale {
			r.stale = false
			s.recount()
		}
		r.unlogged = true
		// No caller waits for this record. Until it is durable, every change writes it, too:
		// what is confirmed now must not be hidden after a restart.
		s.index.log.Append(func(err error) {
			if err == nil {
				s.mu.Lock()
				r.unlogged = false
				s.mu.Unlock()
			}
		}, s.encode([]*record{s.rankRecord(r)})...)
	}
	return r, nil
}

func (s *space) rankRecord(r *rank) *record {
	return &record{
		kind: rankSet, space: s.name, rank: r.id, numPages: r.numPages,
		stale: r.stale, closed: r.closedUntil > s.index.now(),
	}
}

// counts reports whether a key needs this rank to be complete.
func (s *space) counts(r *rank) bool { return !r.stale && (s.world == 0 || r.id < s.world) }

// attach makes a key the owner of a page that has none.
func (s *space) attach(r *rank, id, page uint32) {
	e := s.entries.at(id)
	r.assertOwner(page, r.owner[page] == 0, "nobody")
	r.owner[page] = id + 1
	r.setPage(id, page+1)
	r.keyed++
	e.on++
	if s.counts(r) {
		e.counted++
	}
	if !s.updateComplete(id, e) && s.need > 0 { // before the first recount nothing is listed
		s.list(r, page, e)
	}
	s.index.liveBytes.Add(s.liveBytes(e.key))
}

// detach removes a key from its page, which has no owner afterwards. A key without pages
// is removed.
func (s *space) detach(r *rank, id uint32) (page uint32) {
	e := s.entries.at(id)
	page = r.pageOf[id] - 1
	r.assertOwner(page, r.owner[page] == id+1, "its key")
	r.owner[page] = 0
	r.pageOf[id] = 0
	r.order.void(page)
	r.keyed--
	e.on--
	if s.counts(r) {
		e.counted--
	}
	s.index.liveBytes.Add(-s.liveBytes(e.key))
	if e.on == 0 && e.writing == 0 {
		s.removeKey(id, e)
	} else {
		s.updateComplete(id, e)
	}
	return page
}

// recordBytes returns about how long a record without pages is in the log.
func (s *space) recordBytes() int64 { return int64(len(s.name.Namespace)+len(s.name.Set)) + 16 }

// liveBytes returns about how much the log needs for a page of a key. The page may be
// alone in its record: compaction must not begin where it could gain nothing.
func (s *space) liveBytes(key string) int64 { return s.recordBytes() + int64(len(key)) + 8 }

// newEntry makes an entry for a key that has no page yet.
func (s *space) newEntry(hash uint64, key string) uint32 {
	id := s.entries.add(hash, key)
	s.byKey.add(hash, id)
	return id
}

// removeKey removes an entry without pages.
func (s *space) removeKey(id uint32, e *entry) {
	if e.complete {
		s.nComplete--
	}
	s.byKey.remove(e.hash, id)
	s.entries.remove(id)
}

// updateComplete updates whether a key is complete, and reports whether that changed. If
// so, the key gets a new place in the order of eviction, unless it is being removed.
func (s *space) updateComplete(id uint32, e *entry) bool {
	complete := s.need > 0 && e.counted >= s.need
	if complete == e.complete {
		return false
	}
	e.complete = complete
	if complete {
		s.nComplete++
	} else {
		s.nComplete--
	}
	if !e.removing {
		s.relist(id, e)
	}
	return true
}

// visible reports whether readers may learn of a key.
func (e *entry) visible() bool { return e.complete && !e.removing }

// recount finds out which keys are complete, after the ranks that count have changed.
func (s *space) recount() {
	s.need = uint32(s.world)
	if s.world == 0 {
		for _, r := range s.ranks {
			if s.counts(r) {
				s.need++
			}
		}
	}
	s.nComplete = 0
	for _, r := range s.ranks {
		r.order.reset(r.keyed)
	}
	for id, e := range s.entries.all {
		e.counted = 0
		for _, r := range s.ranks {
			if s.counts(r) && r.has(id) {
				e.counted++
			}
		}
		if e.complete = s.need > 0 && e.counted >= s.need; e.complete {
			s.nComplete++
		}
		s.relist(id, e)
	}
}

// sweep ends the reservations and quarantines of a rank that are over.
func (s *space) sweep(r *rank, now int64) {
	if n := r.sweep(now, s.index.quarantine()+s.index.lateWrites()); n > 0 {
		s.counters.expired.Add(n)
	}
}
