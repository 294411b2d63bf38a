package index

import (
	"fmt"
	"strings"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// replay starts the log and applies its records. The log does not have everything that
// clients were told before, so replay assumes the worst: that every key was located, or
// its page handed out to be written again, just now; and so was every page that was
// ever reserved, or given up, and is not known to have another owner now. "Just now" is the
// moment when the log was read: until then another host may have led it.
func (x *Index) replay() error {
	if !(x.o.Free >= 0 && x.o.Free < 1) {
		return fmt.Errorf("%w: %v of the pages kept free; want 0 or more, and less than 1", pageservice.ErrInvalid, x.o.Free)
	}
	if x.o.World < 0 || x.o.World > pageservice.MaxRanks {
		return fmt.Errorf("%w: %d ranks; want 0 to %d", pageservice.ErrInvalid, x.o.World, pageservice.MaxRanks)
	}
	return x.log.Start(pageservice.LogOwner{
		Replay:    x.replayRecord,
		Snapshot:  x.snapshot,
		StateHash: x.stateHash,
		Whole:     func() bool { return !x.forgets },
		Reset:     x.reset,
		Missing:   func(cause string) { x.missing = cause },
		Replayed:  x.replayed,
		Keep:      x.keep,
		LiveBytes: x.liveBytes.Load,
	})
}

func (x *Index) replayRecord(b []byte) error {
	rec := &x.reading
	if err := rec.decode(b); err != nil {
		return err
	}
	if rec.kind == reopened && x.find(rec.space) == nil {
		return nil
	}
	s := x.findOrCreate(rec.space)
	if err := s.replay(rec); err != nil {
		return err
	}
	s.countMemory()
	x.trim()
	return nil
}

// replayed completes the index after the whole log was read.
func (x *Index) replayed() error {
	x.start = x.o.Now()
	x.reading = record{}
	for _, s := range x.all() {
		if err := s.replayed(); err != nil {
			return fmt.Errorf("space %q %q: %w", s.name.Namespace, s.name.Set, err)
		}
	}
	if x.missing != "" {
		x.forgetAll()
	}
	return nil
}

// longestUse is how long a client may use a page that it was told of before the log was read, or since
// then by a host that led before.
func (x *Index) longestUse() int64 {
	p := x.promised()
	return int64(max(p.Lease, p.Reserve) + x.o.Handover)
}

// promised is what clients that were told something before may rely on.
func (x *Index) promised() pageservice.Promises { return x.o.Promised.And(x.o.Promises()) }

// longestQuarantine is how long a page stays in quarantine if a client may have been told
// of it just now.
func (x *Index) longestQuarantine() int64 {
	p := x.promised()
	return x.longestUse() + int64(p.Quarantine+p.LateWrites)
}

// replay applies one record.
func (s *space) replay(rec *record) error {
	switch rec.kind {
	case rankSet:
		s.setRank(rec)
		s.ranks[rec.rank].closedUntil = 0
		if rec.closed {
			s.ranks[rec.rank].closedUntil = s.index.longestQuarantine()
		}
		return nil
	case forgot:
		s.forgetRank(rec.rank, s.index.longestQuarantine())
		return nil
	case reopened:
		s.closedUntil = 0
		s.discard()
		return nil
	case cleared:
		for _, r := range s.ranks {
			for page, o := range r.owner {
				if o != 0 {
					s.replayFreed(r, uint32(page))
				}
			}
		}
		return nil
	}
	r := s.ranks[rec.rank]
	if r == nil {
		// Compaction has moved the record of the rank behind those of its pages.
		r = s.addRank(rec.rank)
	}
	keys, err := keysOf(rec.keys)
	if err != nil {
		return err
	}
	defer keys.release()
	keys.lookUp(s)
	for i, page := range rec.pages {
		r.use(page)
		switch rec.kind {
		case reserved:
			s.replayReserved(r, page, rec.hashes[i])
		case confirmed:
			s.replayConfirmed(r, page, keys, i)
		case freed:
			s.replayFreed(r, page)
		case rested:
			s.disown(r, page)
		}
	}
	return nil
}

// disown removes the owner of a page.
func (s *space) disown(r *rank, page uint32) {
	switch o := r.owner[page]; {
	case o == 0:
	case o&heldBit != 0:
		r.drop(page)
	default:
		s.detach(r, o-1)
	}
}

func (s *space) replayConfirmed(r *rank, page uint32, keys *batch, i int) {
	id, known := s.replayedKey(keys, i)
	if known && r.page(id) == page+1 {
		return
	}
	s.disown(r, page)
	if id, known = s.replayedKey(keys, i); known && r.has(id) {
		s.detach(r, id)
		id, known = s.replayedKey(keys, i)
	}
	if !known {
		id = s.newEntry(keys.hashes[i], strings.Clone(keys.keys[i]))
		// Whoever has written it has confirmed it: no late write is to be feared.
		s.entries.at(id).leaseUntil.Store(s.index.longestUse() + int64(s.index.promised().Quarantine) - s.index.quarantine())
	}
	s.index.read++
	s.entries.at(id).lastUse.Store(s.index.read - beforeAll)
	s.attach(r, id, page)
}

// beforeAll is subtracted from the number of a key that is replayed: keys are evicted in the order of the log, before
// those that were used since.
const beforeAll = 1 << 60

// replayedKey finds the entry of a key, which may have been removed since the batch was
// looked up.
func (s *space) replayedKey(keys *batch, i int) (id uint32, known bool) {
	if id = keys.ids[i]; id != none {
		if e := s.entries.at(id); e.on == 0 || e.key != keys.keys[i] {
			keys.ids[i] = none
		}
	}
	return keys.entry(s, i)
}

// Until the log was read, holds are busy: they do not end, and take no memory for their ends.

func (s *space) replayReserved(r *rank, page uint32, hash uint64) {
	s.disown(r, page)
	p := s.index.promised()
	r.hold(page, hold{state: late, busy: true, hash: hash, until: int64(p.Reserve + p.Quarantine + p.LateWrites)})
}

func (s *space) replayFreed(r *rank, page uint32) {
	s.disown(r, page)
	r.hold(page, hold{state: deleted, busy: true, until: s.index.longestQuarantine()})
}

// replayed completes the space after the whole log was read. It may be called again, after more was read.
func (s *space) replayed() error {
	for _, r := range s.ranks {
		r.free, r.kept = r.free[:0], r.kept[:0]
		if int64(len(r.owner)) > r.numPages {
			return fmt.Errorf("rank %d of %d pages uses %d", r.id, r.numPages, len(r.owner))
		}
		r.due = make(dueHeap, 0, r.reserved+r.quarantined)
		for page, o := range r.owner {
			if o == 0 && r.trimmed == 0 {
				r.kept = append(r.kept, uint32(page))
			} else if o == 0 { // though the log may say otherwise
				r.release(uint32(page))
			} else if h := r.holdOf(uint32(page)); h != nil {
				r.change(uint32(page), h.state, h.until)
			}
		}
		if r.trimmed > 0 {
			r.closedUntil = s.index.longestQuarantine()
		}
		r.toLog = r.trimmed
	}
	s.recount()
	s.countMemory()
	s.assert()
	return nil
}
