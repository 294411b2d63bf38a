package pages

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Save implements kv.Store. It reserves a page for each block and writes the shards as
// they come, then the record. When the service has confirmed the page, the last shard is
// settled: before that the block is nowhere, and from then on it outlives this process.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return s.begin(ctx, batch.Save, shards, s.save)
}

// block is a block that is being written.
type block = assembly.Block[*page]

// saving is a batch of saves.
type saving struct {
	*batch.Batch
	store    *Store
	writer   *assembly.Writer
	patience context.Context // the batch's, with the deadline of all its waits for others
	file     *handle
	shards   []kv.Shard

	reserved map[kv.Key]*reservation
	known    map[kv.Key]error // why nothing of a block is to be written: errPresent, or an error
	waiting  map[int]bool     // shards that another batch is writing
	again    chan int         // shards that another batch has finished with

	blocks   []*block             // by shard: the block that it is written to
	records  []*recording         // by shard: the record of the block that it completes
	cancels  []context.CancelFunc // of the contexts of queued moves
	arrivals *arrivals
	moves    atomic.Int64 // shards and records that are being written or handled
}

// sumOf is the checksum of a shard.
func sumOf(shard kv.Shard) uint64 { return blockhead.Sum(shard.Buf) }

// recording is a record that is being written.
type recording struct {
	record *record
	cancel context.CancelFunc
}

func (s *Store) save(b *batch.Batch, shards []kv.Shard) {
	s.sweepNow()
	patience, done := s.inTime(b.Context())
	defer done()
	d := &saving{
		Batch: b, store: s, writer: assembly.WriterOf(b.Context(), s.o.Layout, shards), patience: patience, shards: shards,
		reserved: map[kv.Key]*reservation{}, known: map[kv.Key]error{}, waiting: map[int]bool{},
		again:  make(chan int, len(shards)),
		blocks: make([]*block, len(shards)), records: make([]*recording, len(shards)),
	}
	d.arrivals = newArrivals(len(shards), s.o.Streams, d.arrive)
	all := make([]int, len(shards))
	for i := range all {
		all[i] = i
	}
	var err error
	if d.file, err = s.file.take(patience); err != nil {
		d.SettleAll(all, err)
		d.arrivals.close()
		return
	}
	defer s.file.give(d.file)
	d.enter(all)
	d.wait()
	d.arrivals.close()
	for key, b := range d.reserved {
		s.forget(key, b)
	}
	for _, cancel := range d.cancels {
		cancel()
	}
}

// wait takes up shards that other batches have finished with, until all are settled.
func (d *saving) wait() {
	ended := d.patience.Done()
	for {
		select {
		case i := <-d.again:
			free := []int{i}
			for len(d.again) > 0 {
				free = append(free, <-d.again)
			}
			d.enterAgain(free)
		case <-ended:
			ended = nil
			for i := range d.waiting {
				d.settleUnwritten(i)
			}
			clear(d.waiting)
		case <-d.Done():
			return
		}
	}
}

func (d *saving) enterAgain(free []int) {
	still := free[:0]
	for _, i := range free {
		if d.waiting[i] {
			delete(d.waiting, i)
			still = append(still, i)
		}
	}
	d.enter(still)
}

// enter decides which shards this batch writes, and begins to write them.
func (d *saving) enter(some []int) {
	d.reserve(some)
	type row struct { // writes that must begin by the same time
		writeBy time.Time
		ops     []transfer.Op
	}
	var rows []row
	for _, i := range some {
		b := d.claim(i)
		if b == nil {
			continue
		}
		d.blocks[i] = b
		if len(rows) == 0 || rows[len(rows)-1].writeBy != b.Payload.writeBy {
			rows = append(rows, row{writeBy: b.Payload.writeBy})
		}
		shard, last := d.shards[i], &rows[len(rows)-1]
		last.ops = append(last.ops, d.arrivals.op(i, transfer.Op{
			File: d.file.file, Write: true, Buf: shard.Buf,
			Offset: d.store.label.at(b.Payload.number) + int64(shard.Index)*d.store.o.Layout.ShardBytes,
		}))
	}
	for _, r := range rows {
		d.moves.Add(int64(len(r.ops)))
	}
	for _, r := range rows {
		ctx, cancel := context.WithDeadline(d.Context(), r.writeBy)
		d.cancels = append(d.cancels, cancel)
		d.store.engine.Do(ctx, r.ops)
	}
	if len(rows) == 0 && len(d.waiting) > 0 {
		d.store.confirmer.hurry() // perhaps others have written all that this batch waits for
	}
}

// reserve reserves pages for the blocks of shards.
func (d *saving) reserve(some []int) {
	var keys []kv.Key
	seen := map[kv.Key]bool{}
	for _, i := range some {
		if k := d.shards[i].Key; !seen[k] && d.known[k] == nil {
			seen[k] = true
			keys = append(keys, k)
		}
	}
	for k, b := range d.store.reserve(d.patience, keys) {
		d.reserved[k] = b
		if b.err != nil {
			d.known[k] = b.err
		}
	}
}

// claim returns the block that this batch is to write a shard to, or nil.
func (d *saving) claim(i int) *block {
	s, shard := d.store, d.shards[i]
	key := shard.Key
	if d.known[key] == nil && s.tooOld(key) {
		d.known[key] = errTooOld
	}
	if d.known[key] != nil || d.patience.Err() != nil {
		d.settleUnwritten(i)
		return nil
	}
	b, verdict, err := s.blocks.Enter(d.writer, shard,
		func() (*page, error) { return s.take(d.patience, key) },
		func() { d.again <- i })
	switch {
	case errors.Is(err, kv.ErrConflict):
		if b != nil {
			s.drop(b)
		}
		d.Settle(i, err)
	case err != nil:
		d.known[key] = err
		d.settleUnwritten(i)
	case verdict == assembly.Have:
		d.Settle(i, nil)
	case verdict == assembly.Later:
		d.waiting[i] = true
	default:
		return b
	}
	return nil
}

// settleUnwritten settles a shard that this batch is not to write.
func (d *saving) settleUnwritten(i int) {
	key := d.shards[i].Key
	err := d.known[key]
	switch {
	case err == errPresent:
		err = nil
	case err != nil:
	case endOf(d.patience) == errLate:
		err = fmt.Errorf("%w: another batch writes block %s, or reserves a page for it, and has not ended", errLate, key)
	default:
		err = endOf(d.patience)
	}
	d.Settle(i, err)
}

// errTooOld says that a reservation has ended before the block was whole.
var errTooOld = fmt.Errorf("%w: its shards came too slowly for the reservation of its page; raise --pages-reserve", kv.ErrTimeout)

// arrive handles the end of a write: of a shard, or of the record of the block that a shard
// has completed.
func (d *saving) arrive(a arrival) {
	defer func() {
		if d.moves.Add(-1) == 0 {
			d.store.confirmer.hurry()
		}
	}()
	d.store.file.dropIfGone(d.file, a.err)
	if a.of < 0 {
		d.recorded(-1-a.of, a.err)
		return
	}
	s, b, shard := d.store, d.blocks[a.of], d.shards[a.of]
	if a.err != nil {
		if s.blocks.Failed(b, shard.Index) {
			s.finish(b)
		}
		d.Settle(a.of, d.late(a.err))
		return
	}
	if invariants.Enabled {
		s.mu.Lock()
		p := s.unfinished[b.Key]
		s.mu.Unlock()
		invariants.Check(p == b.Payload, "block %s is written to page %d, which is not its page", b.Key, b.Payload.number)
	}
	b.Sums[shard.Index] = sumOf(shard)
	if outcome := s.blocks.Written(b, shard.Index); outcome != assembly.Whole {
		if outcome == assembly.Dead {
			s.drop(b)
		}
		d.Settle(a.of, outcome.Err(b.Key))
		return
	}
	// The batch's own context does not cancel the record: other batches have written
	// shards, too.
	ctx, cancel := context.WithDeadline(context.Background(), b.Payload.writeBy)
	r := &recording{s.recordOf(b.Key, b.Sums), cancel}
	d.records[a.of] = r
	d.moves.Add(1)
	s.engine.Do(ctx, []transfer.Op{d.arrivals.op(-1-a.of, transfer.Op{
		File: d.file.file, Write: true, Ahead: true, Buf: r.record.raw,
		Offset: s.label.at(b.Payload.number) + headAt(s.o.Layout),
	})})
}

// recorded confirms a block whose record is written.
func (d *saving) recorded(i int, err error) {
	s, b, r := d.store, d.blocks[i], d.records[i]
	r.cancel()
	if !errors.Is(err, kv.ErrAbandoned) {
		s.heads.Put(r.record)
	}
	if err != nil {
		s.finish(b)
		if errors.Is(err, kv.ErrAbandoned) { // it is the record's memory, not the caller's
			err = fmt.Errorf("%w: the record of block %s", kv.ErrTimeout, b.Key)
		}
		d.Settle(i, d.late(err))
		return
	}
	s.confirmer.add(confirmation{key: b.Key, page: b.Payload, until: time.Now().Add(s.o.Timeout), done: func(err error) {
		s.finish(b)
		d.Settle(i, err)
	}})
}

// late returns errTooOld for a write that did not begin before its reservation ended.
func (d *saving) late(err error) error {
	if errors.Is(err, context.DeadlineExceeded) && d.Context().Err() == nil {
		return errTooOld
	}
	return err
}
