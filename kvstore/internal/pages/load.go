package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Load implements kv.Store.
//
// It reads the record of each block with the data and settles a shard when both are
// there, so that layers land one by one. The checksum tells whether the bytes are the
// block's, however long reading took and whatever was written to the page meanwhile.
// Without checksums only the lease does: what arrives after its end is a miss.
func (s *Store) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.begin(ctx, batch.Load, shards, s.load)
}

// loading is a batch of loads.
type loading struct {
	*batch.Batch
	store  *Store
	mendBy func() time.Time // a timeout after damage was first found
	file   *handle
	shards []kv.Shard
	blocks []*wanted      // in the order of their first shards
	byKey  map[kv.Key]int // their places
}

// wanted is a block of which at least one shard is loaded.
type wanted struct {
	key     kv.Key
	page    int64
	leased  time.Time // until then
	record  *record
	version uint64 // of the record, once it is known

	mu      sync.Mutex
	known   bool  // the record has been read
	err     error // why the record is not the block's
	arrived []int // shards that wait for the record
	damage  error // the error of all shards of a block that was found damaged
}

func (s *Store) load(b *batch.Batch, shards []kv.Shard) {
	l := &loading{
		Batch: b, store: s, shards: shards, byKey: map[kv.Key]int{},
		mendBy: sync.OnceValue(func() time.Time { return time.Now().Add(s.o.Timeout) }),
	}
	var keys []kv.Key
	for _, shard := range shards {
		if _, known := l.byKey[shard.Key]; !known {
			l.byKey[shard.Key] = len(keys)
			keys = append(keys, shard.Key)
		}
	}
	if err := l.locate(keys); err != nil {
		l.settleAll(err)
		return
	}
	file, err := s.file.take(b.Context())
	if err != nil {
		l.settleAll(err)
		return
	}
	defer s.file.give(file)
	l.file = file
	l.read()
}

func (l *loading) settleAll(err error) {
	for i := range l.shards {
		l.Settle(i, err)
	}
}

// locate finds the pages. Their leases begin no earlier than the request.
func (l *loading) locate(keys []kv.Key) error {
	ctx, done := l.store.inTime(l.Context())
	defer done()
	for at := range chunks(keys) {
		some := keys[at:min(at+batchKeys, len(keys))]
		asked := time.Now()
		pages, err := l.store.service.locate(ctx, some)
		if err != nil {
			return err
		}
		for i, key := range some {
			l.blocks = append(l.blocks, &wanted{key: key, page: pages[i], leased: asked.Add(l.store.o.Lease)})
		}
	}
	return nil
}

// read reads the blocks that have a page, and settles the others.
func (l *loading) read() {
	s := l.store
	var absent []int
	moves := 0
	for i, shard := range l.shards {
		if w := l.blocks[l.byKey[shard.Key]]; w.page == none {
			absent = append(absent, i)
			continue
		} else if w.record == nil {
			w.record = s.heads.Get().(*record)
			moves++
		}
		moves++
	}
	if moves == 0 {
		l.miss(absent)
		return
	}
	ops := make([]transfer.Op, 0, moves)
	var left atomic.Int64
	left.Store(int64(moves))
	over := make(chan struct{})
	arrivals := newArrivals(moves, s.o.Streams, func(a arrival) {
		l.arrive(a)
		if left.Add(-1) == 0 {
			close(over)
		}
	})
	begun := make([]bool, len(l.blocks))
	for i, shard := range l.shards {
		b := l.byKey[shard.Key]
		w := l.blocks[b]
		if w.page == none {
			continue
		}
		if !begun[b] {
			begun[b] = true
			ops = append(ops, arrivals.op(-1-b, transfer.Op{File: l.file.file, Offset: s.label.at(w.page) + headAt(s.o.Layout), Buf: w.record.raw}))
		}
		ops = append(ops, arrivals.op(i, transfer.Op{File: l.file.file, Offset: s.label.at(w.page) + int64(shard.Index)*s.o.Layout.ShardBytes, Buf: shard.Buf}))
	}
	l.miss(absent)
	s.engine.Do(l.Context(), ops)
	<-over
	arrivals.close()
	for _, w := range l.blocks {
		if w.record != nil && !errors.Is(w.err, kv.ErrAbandoned) {
			s.heads.Put(w.record)
		}
	}
}

func (l *loading) miss(absent []int) {
	for _, i := range absent {
		l.Settle(i, kv.ErrMiss)
	}
}

// arrive handles the end of a move.
func (l *loading) arrive(a arrival) {
	l.store.file.dropIfGone(l.file, a.err)
	if a.of < 0 {
		w := l.blocks[-1-a.of]
		err := l.judge(w, a.err)
		w.mu.Lock()
		w.known, w.err = true, err
		w.version = w.record.head.Version()
		arrived := w.arrived
		w.arrived = nil
		w.mu.Unlock()
		for _, i := range arrived {
			l.finish(w, i)
		}
		return
	}
	w := l.blocks[l.byKey[l.shards[a.of].Key]]
	switch {
	case a.err == nil:
	case errors.Is(a.err, io.ErrUnexpectedEOF):
		l.Settle(a.of, l.damaged(w, "the file ends in it"))
		return
	default:
		l.noteUnreadShard(w, l.shards[a.of].Index, a.err)
		l.Settle(a.of, a.err)
		return
	}
	w.mu.Lock()
	known := w.known
	if !known {
		w.arrived = append(w.arrived, a.of)
	}
	w.mu.Unlock()
	if known {
		l.finish(w, a.of)
	}
}

// judge returns why a record that was read is not the block's, or nil.
func (l *loading) judge(w *wanted, err error) error {
	switch {
	case errors.Is(err, io.ErrUnexpectedEOF):
		return l.damaged(w, "the file ends before its record")
	case err != nil:
		l.noteUnreadRecord(w, err)
		return err
	}
	h := &w.record.head
	if err = h.Decode(w.record.raw); err == nil {
		err = h.Match(l.store.o.Namespace, w.key, l.store.o.Layout)
	}
	if err != nil {
		return l.damaged(w, err.Error())
	}
	return nil
}

// finish settles a shard whose data and record have arrived.
func (l *loading) finish(w *wanted, i int) {
	shard := l.shards[i]
	l.SetVersion(i, w.version)
	switch {
	case w.err != nil && errors.Is(w.err, kv.ErrAbandoned):
		// The record's memory is abandoned, not the shard's.
		l.Settle(i, fmt.Errorf("%w: the record of block %s", kv.ErrTimeout, w.key))
	case w.err != nil:
		l.Settle(i, w.err)
	case l.store.o.Checksums == kv.ChecksumsOff:
		if time.Now().After(w.leased) {
			l.Settle(i, kv.ErrMiss)
			return
		}
		l.Settle(i, nil)
	default:
		err := w.record.head.Verify(shard.Index, shard.Buf)
		if err != nil {
			err = l.damaged(w, err.Error())
		}
		l.Settle(i, err)
	}
}

// damaged returns the error for a page that does not contain its block. If the lease has
// ended, the service may have given the page to another block, and it is a plain miss.
// Else the block is deleted, once.
func (l *loading) damaged(w *wanted, what string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.damage != nil:
	case time.Now().After(w.leased):
		w.damage = kv.ErrMiss
	default:
		w.damage = l.deleteDamaged(w, what)
	}
	return w.damage
}

// deleteDamaged deletes the key of a damaged block before the shards are settled, so that the
// block can be saved again. If that fails, the error is not an ErrCorrupt.
func (l *loading) deleteDamaged(w *wanted, what string) error {
	s := l.store
	ctx, done := until(l.Context(), l.mendBy())
	defer done()
	found := &kv.CorruptError{Key: w.key, Where: fmt.Sprintf("page %d of %s", w.page, s.o.File), What: what}
	// Another client may have found it, and have saved the block again.
	pages, err := s.service.locate(ctx, []kv.Key{w.key})
	if err == nil && pages[0] != w.page {
		return kv.ErrMiss
	}
	s.counters.CorruptBlocks.Add(1)
	if err == nil {
		err = s.service.remove(ctx, once, []kv.Key{w.key})
	}
	if err != nil {
		return fmt.Errorf("%s, and could not be deleted: %w", found, err)
	}
	s.counters.QuarantinedBlocks.Add(1)
	return found
}
