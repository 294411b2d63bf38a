package index

import (
	"encoding/binary"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// Where several hosts share a log, those that follow it take snapshots of what it says, so that its
// beginning can be dropped, and compare hashes of what each made of it. Both are of the state
// while the log is read. The index of the host that leads knows more: which reservations have
// ended, and which keys were evicted without a record.

// snapshotBytes is how long the pages of a record of a snapshot may get before another begins. The last
// key of a record may be long.
const snapshotBytes = pageservice.SnapshotRecordBytes / 2

// snapshot implements pageservice.LogOwner.Snapshot.
func (x *Index) snapshot(emit func([]byte) error) error {
	for _, s := range x.all() {
		if err := s.snapshot(emit); err != nil {
			return err
		}
	}
	return nil
}

func (s *space) snapshot(emit func([]byte) error) error {
	put := func(rec *record) error {
		rec.space = s.name
		return emit(rec.encode())
	}
	if s.closedUntil != 0 {
		if err := put(&record{kind: forgot}); err != nil { // before there are ranks
			return err
		}
	}
	for _, id := range slices.Sorted(maps.Keys(s.ranks)) {
		if err := s.snapshotRank(s.ranks[id], put); err != nil {
			return err
		}
	}
	return nil
}

// snapshotRank passes on records of a rank, and of its pages by kind of owner. A rank whose own record
// compaction has moved behind this place of the log has no number of pages yet.
func (s *space) snapshotRank(r *rank, put func(*record) error) error {
	if r.numPages > 0 {
		if err := put(&record{kind: rankSet, rank: r.id, numPages: r.numPages, stale: r.stale, closed: r.closedUntil != 0}); err != nil {
			return err
		}
	}
	for _, kind := range []kind{confirmed, reserved, freed} {
		rec, bytes := &record{kind: kind, rank: r.id}, 0
		for page := range r.owner {
			n := s.snapshotPage(r, uint32(page), rec)
			if bytes += n; bytes < snapshotBytes {
				continue
			}
			if err := put(rec); err != nil {
				return err
			}
			rec, bytes = &record{kind: kind, rank: r.id}, 0
		}
		if len(rec.pages) > 0 {
			if err := put(rec); err != nil {
				return err
			}
		}
	}
	return nil
}

// snapshotPage adds a page to a record if its owner is of that kind, and returns about how many bytes
// that takes.
func (s *space) snapshotPage(r *rank, page uint32, rec *record) int {
	const pageNumber, keyLength, hash = 5, 3, 8
	o, h := r.owner[page], r.holdOf(page)
	switch {
	case o == 0:
		return 0
	case h == nil && rec.kind == confirmed:
		key := s.entries.at(o - 1).key
		rec.pages, rec.keys = append(rec.pages, page), append(rec.keys, key)
		return pageNumber + keyLength + len(key)
	case h != nil && rec.kind == reserved && h.state == late:
		rec.pages, rec.hashes = append(rec.pages, page), append(rec.hashes, h.hash)
		return pageNumber + hash
	case h != nil && rec.kind == freed && h.state == deleted:
		rec.pages = append(rec.pages, page)
		return pageNumber
	}
	return 0
}

// stateHash implements pageservice.LogOwner.StateHash: it is the hash of a snapshot.
func (x *Index) stateHash() uint64 {
	h := xxh3.New()
	_ = x.snapshot(func(rec []byte) error {
		_, _ = h.Write(binary.AppendUvarint(nil, uint64(len(rec))))
		_, _ = h.Write(rec)
		return nil
	})
	return h.Sum64()
}

// reset implements pageservice.LogOwner.Reset.
func (x *Index) reset() {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.spaces, x.accounts = map[pageservice.Space]*space{}, map[string]*account{}
	for _, n := range []*atomic.Int64{&x.used, &x.frames, &x.liveBytes, &x.nextReopen} {
		n.Store(0)
	}
	x.missing, x.forgets = "", false
}
