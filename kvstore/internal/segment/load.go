package segment

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Load is kv.Store's. A block that was recycled between Lookup and Load is a miss. After
// that its segment is pinned, and keeps the block until it is read.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	b, err := s.group.Begin(ctx, batch.Load, shards, nil)
	if err != nil {
		return nil, err
	}
	q := &batch.Queue{Engine: s.engine, Context: b.Context()}
	blocks := make(map[kv.Key]*reading)
	for i := 0; i < len(shards); {
		first, r := b.Shard(i), b.Run(i)
		for b.Extend(&r, maxRunBytes) {
		}
		i += r.N
		if err := b.Ended(); err != nil {
			b.SettleRun(r, err)
			continue
		}
		rd, known := blocks[first.Key]
		if !known {
			rd = s.startReading(b, q, first.Key)
			blocks[first.Key] = rd
		}
		// A head is read only together with a shard. So the batch cannot be done, nor
		// the store closed, before the head has been read.
		if rd == nil {
			b.SettleRun(r, kv.ErrMiss)
		} else {
			rd.read(q, r)
		}
	}
	q.Flush()
	for _, rd := range blocks {
		if rd != nil {
			rd.unref()
		}
	}
	return b.Task, nil
}

// maxRunBytes lets several streams share a large block.
const maxRunBytes = 4 << 20

// reading is a block that a batch reads: its head, once, and the shards that the batch
// wants.
type reading struct {
	place
	s          *Store
	b          *batch.Batch
	key        kv.Key
	generation uint64
	refs       atomic.Int32 // moves that are not done, and Load itself

	mu      sync.Mutex
	arrived bool // the head; from then on the next three do not change
	head    blockhead.Head
	version uint64
	failed  error    // the head could not be read, or is not this block's
	waiting []func() // jobs that wait for the head

	judged  sync.Once // decides whether a head that is not this block's is damage
	deleted bool      // it is not: the block was deleted
}

// startReading finds a block, pins its segment and begins to read its head. It returns nil
// for a miss.
func (s *Store) startReading(b *batch.Batch, q *batch.Queue, key kv.Key) *reading {
	s.mu.RLock()
	at, ok := s.table.find(key)
	if !ok {
		s.mu.RUnlock()
		return nil
	}
	seg := s.segmentOf(at)
	seg.pins.Add(1)
	r := &reading{place: place{seg, int(at - seg.first)}, s: s, b: b, key: key, generation: seg.generation}
	s.table.slots[at].hits.Add(1)
	s.table.slots[at].last.Store(s.clock.Add(1))
	s.mu.RUnlock()
	s.reading.Add(1)
	r.refs.Store(1)

	buf, ok := s.heads.try()
	if !ok {
		// The buffers may all be used by reads that wait in q.
		q.Flush()
		var err error
		if buf, err = s.heads.get(b.Context()); err != nil {
			r.arrive(nil, err)
			return r
		}
	}
	r.refs.Add(1)
	q.Add(transfer.Op{File: seg.data, Offset: s.geo.headAt(r.slot), Buf: buf, Done: func(n int, err error) {
		r.arrive(buf[:n], err)
		s.heads.put(buf, err)
		r.unref()
	}, Late: func() { s.heads.put(buf, nil) }})
	return r
}

// segmentOf returns the segment of a slot of the table.
func (s *Store) segmentOf(at uint32) *segment { return s.segments[int(at)/s.geo.slots] }

// unref unpins the segment after the last move.
func (r *reading) unref() {
	if r.refs.Add(-1) == 0 {
		r.s.unpin(r.seg)
		r.s.lastRead.Store(time.Now().UnixNano())
		r.s.reading.Add(-1)
	}
}

// arrive takes the head and queues the jobs that wait for it. An error of reading the
// head becomes that of the shards, but never an ErrAbandoned: their buffers are not in
// use.
func (r *reading) arrive(raw []byte, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case errors.Is(err, kv.ErrAbandoned):
		r.failed = fmt.Errorf("%w: %s", kv.ErrTimeout, err)
	case err != nil:
		r.failed = r.seg.explain(err)
	default:
		r.failed = r.check(raw)
	}
	r.arrived = true
	for _, job := range r.waiting {
		r.s.compute(job)
	}
	r.waiting = nil
}

// check returns what is wrong with the head.
func (r *reading) check(raw []byte) error {
	if err := r.s.checkHead(&r.head, raw, r.key, r.generation); err != nil {
		return r.damaged(err.Error())
	}
	r.version = r.head.Version()
	return nil
}

// checkHead decodes a head and returns what is wrong with it for a block of that key in a
// segment of that generation.
func (s *Store) checkHead(head *blockhead.Head, raw []byte, key kv.Key, generation uint64) error {
	if err := head.Decode(raw); err != nil {
		return err
	}
	if head.Sequence != generation {
		return fmt.Errorf("it is of generation %d, not %d", head.Sequence, generation)
	}
	return head.Match(s.o.Namespace, key, s.o.Layout)
}

func (r *reading) damaged(what string) error {
	return &kv.CorruptError{Key: r.key, Where: fmt.Sprintf("%s at %d", r.seg.file.Name(), r.s.geo.slotAt(r.slot)), What: what}
}

// read begins to read a run of shards.
func (r *reading) read(q *batch.Queue, run batch.Run) {
	r.refs.Add(1)
	offset := r.s.geo.slotAt(r.slot) + int64(r.b.Shard(run.First).Index)*r.s.o.Layout.ShardBytes
	op := transfer.Op{File: r.seg.data, Offset: offset, Buf: run.Buf}
	var digest *blockhead.Digest
	if r.s.o.Checksums != kv.ChecksumsOff {
		digest = blockhead.NewDigest(r.s.o.Layout.ShardBytes, run.N)
		op.Piece = digest.Add
	}
	op.Done = func(n int, err error) {
		r.whenHead(func() {
			r.finish(run, run.Buf[:n], digest, err)
			r.unref()
		})
	}
	q.Add(op)
}

// whenHead runs a job once the head has been read.
func (r *reading) whenHead(job func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.arrived {
		r.waiting = append(r.waiting, job)
		return
	}
	r.s.compute(job)
}

// finish checks a run that was read and settles it. The segment is still pinned, so what
// is quarantined is what was read.
func (r *reading) finish(run batch.Run, got []byte, digest *blockhead.Digest, err error) {
	if err != nil {
		r.s.failedToRead(r.key, r.place, err)
		r.b.SettleRun(run, r.seg.explain(err))
		return
	}
	r.s.failedToRead(r.key, r.place, r.failed)
	whole := int64(len(got)) == int64(run.N)*r.s.o.Layout.ShardBytes
	if whole && digest != nil && len(digest.Sums()) == 0 {
		digest.Add(got) // the engine does not call Piece
	}
	for i := run.First; i < run.First+run.N; i++ {
		err := r.failed
		switch {
		case errors.Is(err, kv.ErrCorrupt):
			r.judged.Do(func() { r.deleted = !r.s.quarantine(r.place) })
			if r.deleted {
				err = kv.ErrMiss
			}
		case err != nil:
		case !whole:
			err = r.damaged("it is cut short")
		case digest != nil:
			if wrong := r.head.VerifySum(r.b.Shard(i).Index, digest.Sums()[i-run.First]); wrong != nil {
				err = r.damaged(wrong.Error())
			}
		}
		if r.failed == nil && errors.Is(err, kv.ErrCorrupt) {
			r.s.quarantine(r.place)
		}
		r.b.SetVersion(i, r.version)
		r.b.Settle(i, err)
	}
}
