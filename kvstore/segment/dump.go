package segment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

type block = assembly.Block[place]

// Save is kv.Store's.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	b, err := s.begin(ctx, shards)
	if err != nil {
		return nil, err
	}
	w := &writing{queue: queue{b: b}, s: s}
	for i := range shards {
		w.enter(i)
	}
	w.end()
	return b.t, nil
}

// writing is shards on their way to the engine, in one goroutine.
type writing struct {
	queue
	s *Store

	// The run that the next shard may continue.
	block *block
	run   run
	buf   []byte
}

// errThere ends the opening of a block that has become visible in the meantime.
var errThere = errors.New("the block is there")

// enter begins a shard, or has it begun later, when who is at it has finished.
func (w *writing) enter(i int) {
	shard := w.b.t.Shard(i)
	if w.b.t.Context().Err() != nil {
		w.b.settleDump(i, w.b.ended())
		return
	}
	if w.s.holds(shard.Key) {
		w.held(i)
		return
	}
	blk, verdict, err := w.s.unfinished.Enter(shard.Key, shard.Index,
		func() (place, error) { return w.open(shard.Key) },
		func() { w.s.tasks.Go(func() { w.s.enterAgain(w.b, i) }) })
	switch {
	case err == errThere:
		w.held(i)
	case err != nil:
		w.b.settleDump(i, err)
	case verdict == assembly.Have:
		w.held(i)
	case verdict == assembly.Later:
		w.b.patience() // begins
	case verdict == assembly.Write:
		w.write(blk, i, shard)
	}
}

// held settles a shard that another writer has brought. What its batch waited for is
// over.
func (w *writing) held(i int) {
	w.b.hasRoom()
	w.b.settleHeld(i)
}

// enterAgain is for a shard that was told Later. Its batch is not done, so Close still
// waits.
func (s *Store) enterAgain(b *batch, i int) {
	w := &writing{queue: queue{b: b}, s: s}
	w.enter(i)
	w.end()
}

// open finds a slot for a block. Nobody else is about to write it, so whether it is
// there is known for certain.
func (w *writing) open(key kv.Key) (p place, err error) {
	if w.s.holds(key) {
		return place{}, errThere
	}
	p, ok := w.s.take()
	if !ok {
		w.end() // what was gathered must not wait for a segment
		p, err = w.b.await()
	}
	if err == nil {
		w.b.hasRoom()
	}
	return p, err
}

// await waits for a slot.
func (b *batch) await() (place, error) {
	s := b.s
	patience := time.NewTimer(b.patience())
	defer patience.Stop()
	for {
		s.mu.RLock()
		isReady, trouble := s.isReady, s.trouble
		s.mu.RUnlock()
		if p, ok := s.take(); ok {
			return p, nil
		}
		select {
		case <-isReady:
		case <-b.t.Context().Done():
			return place{}, b.ended()
		case <-patience.C:
			if trouble != nil {
				return place{}, fmt.Errorf("%w: no segment can be written to; the last error was: %w", kv.ErrFull, trouble)
			}
			return place{}, fmt.Errorf("%w: no segment became free within %v", kv.ErrFull, s.o.Timeout)
		}
	}
}

// holds says whether a block is there.
func (s *Store) holds(key kv.Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.table.find(key)
	return ok
}

// write adds a shard to the run, or begins a new one.
func (w *writing) write(blk *block, i int, shard kv.Shard) {
	if w.block == blk && i == w.run.first+w.run.n && shard.Index == w.b.t.Shard(i-1).Index+1 {
		if both, ok := joined(w.buf, shard.Buf); ok {
			w.buf = both
			w.run.n++
			return
		}
	}
	w.cut()
	w.block, w.run, w.buf = blk, run{i, 1}, shard.Buf
}

// cut makes the run a move.
func (w *writing) cut() {
	if w.block == nil {
		return
	}
	s, b, blk, shards, buf := w.s, w.b, w.block, w.run, w.buf
	w.block = nil
	p := blk.Payload
	offset := s.geo.slotAt(p.slot) + int64(b.t.Shard(shards.first).Index)*s.o.Layout.ShardBytes
	w.add(transfer.Op{File: p.seg.data, Offset: offset, Buf: buf, Write: true, Done: func(n int, err error) {
		s.work.add(func() { s.written(b, blk, shards, wholly(n, len(buf), err)) })
	}})
}

// end gives the engine all there is.
func (w *writing) end() {
	w.cut()
	w.flush()
}

// wholly makes a short write an error.
func wholly(n, want int, err error) error {
	if err == nil && n < want {
		return io.ErrShortWrite
	}
	return err
}

// written goes on when a run is in the file, or failed to get there.
func (s *Store) written(b *batch, blk *block, shards run, err error) {
	seg := blk.Payload.seg
	if err != nil {
		s.blame(seg, err)
		err = s.explain(err, seg)
	}
	for i := shards.first; i < shards.first+shards.n; i++ {
		shard := b.t.Shard(i)
		if err != nil {
			if s.unfinished.Failed(blk, shard.Index) {
				s.drop([]*block{blk})
			}
			b.settleDump(i, err)
			continue
		}
		blk.Sums[shard.Index] = blockhead.Sum(shard.Buf)
		if s.unfinished.Written(blk, shard.Index) {
			s.publish(b, blk, i)
			continue
		}
		b.settleDump(i, nil)
	}
}

// publish writes the head behind the data, and makes the block found when it is
// written. A crash before that leaves a hole, a crash after it a block.
func (s *Store) publish(b *batch, blk *block, i int) {
	p := blk.Payload
	buf, err := s.heads.get(context.Background())
	if err != nil {
		s.drop([]*block{blk})
		b.settleDump(i, err)
		return
	}
	head := blockhead.Head{
		Namespace: s.o.Namespace, Key: blk.Key, BlockBytes: s.o.Layout.BlockBytes,
		Sequence: s.generationOf(p.seg), Sums: blk.Sums,
	}
	head.Encode(buf)
	// What has begun is brought to its end, cancelled or not.
	s.engine.Do(context.Background(), []transfer.Op{{
		File: p.seg.data, Offset: s.geo.headAt(p.slot), Buf: buf, Write: true,
		Done: func(n int, err error) {
			s.heads.put(buf, err)
			s.work.add(func() { s.published(b, blk, i, wholly(n, blockhead.Size, err)) })
		},
	}})
}

func (s *Store) published(b *batch, blk *block, i int, err error) {
	if err != nil {
		s.blame(blk.Payload.seg, err)
		s.drop([]*block{blk})
		b.settleDump(i, s.explain(err, blk.Payload.seg))
		return
	}
	p := blk.Payload
	s.mu.Lock()
	s.table.put(blk.Key, p.at())
	s.releaseLocked(p)
	s.failures = 0
	s.mu.Unlock()
	s.unpin(p.seg)
	s.unfinished.Finish(blk)
	b.settleDump(i, nil)
}

// generationOf is a pinned segment's.
func (s *Store) generationOf(seg *segment) uint64 {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return seg.generation
}

// drop gives up unfinished blocks: their slots become holes.
func (s *Store) drop(blocks []*block) {
	for _, blk := range blocks {
		s.count.DroppedBlocks.Add(1)
		s.release(blk.Payload)
		s.unfinished.Finish(blk)
	}
}

// blame sets a segment aside, when it was the storage that failed. Where the storage
// may still write to a slot no other block ever gets it: the segment stays pinned until
// the store is opened again.
func (s *Store) blame(seg *segment, err error) {
	abandoned := errors.Is(err, kv.ErrAbandoned)
	if abandoned {
		seg.pins.Add(1)
	}
	if abandoned || !isOurs(err) {
		s.setAside(seg, err)
	}
}

// settleDump settles a shard that was written, or was not.
func (b *batch) settleDump(i int, err error) {
	if err == nil {
		b.s.count.SavedShards.Add(1)
		b.s.count.SavedBytes.Add(b.s.o.Layout.ShardBytes)
	} else {
		b.s.count.FailedSaves.Add(1)
	}
	b.settle(i, err)
}

// settleHeld settles a shard that is there already.
func (b *batch) settleHeld(i int) { b.settle(i, nil) }
