package segment

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

type block = assembly.Block[place]

// Save is kv.Store's.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	b, err := s.group.Begin(ctx, batch.Save, shards, nil)
	if err != nil {
		return nil, err
	}
	w := s.newWriting(&saving{Batch: b, writer: assembly.WriterOf(b.Context(), s.o.Layout, shards)})
	for i := range shards {
		w.enter(i)
	}
	w.end()
	return b.Task, nil
}

// sumOf is the checksum of a shard.
func sumOf(shard kv.Shard) uint64 { return blockhead.Sum(shard.Buf) }

// saving is a batch of Save.
type saving struct {
	*batch.Batch
	writer *assembly.Writer
	wait   batch.Patience // bounds the waits for a slot
}

// writing gathers shards for the engine. It belongs to one goroutine.
type writing struct {
	batch.Queue
	s *Store
	b *saving

	block *block // of the run that the next shard may extend; nil: there is none
	run   batch.Run
}

func (s *Store) newWriting(b *saving) *writing {
	return &writing{Queue: batch.Queue{Engine: s.engine, Context: b.Context()}, s: s, b: b}
}

// errExists ends the opening of a block that was published in the meantime.
var errExists = errors.New("the block is there")

// enter begins a shard, or leaves it to be begun later, when the writer that works on it
// has finished.
func (w *writing) enter(i int) {
	shard := w.b.Shard(i)
	if err := w.b.Ended(); err != nil {
		w.b.Settle(i, err)
		return
	}
	if w.s.holds(shard.Key) {
		w.held(i)
		return
	}
	blk, verdict, err := w.s.unfinished.Enter(w.b.writer, shard,
		func() (place, error) { return w.open(shard.Key) },
		func() { w.s.group.Go(func() { w.s.enterAgain(w.b, i) }) })
	switch {
	case err == errExists:
		w.held(i)
	case err != nil:
		if blk != nil {
			w.s.drop([]*block{blk})
		}
		w.b.Settle(i, err)
	case verdict == assembly.Have:
		w.held(i)
	case verdict == assembly.Later:
		w.b.wait.Left(w.s.o.Timeout) // begins
	case verdict == assembly.Write:
		w.write(blk, i)
	}
}

// held settles a shard that another writer has stored. The batch's wait is over.
func (w *writing) held(i int) {
	w.b.wait.Reset()
	w.b.SettleUncounted(i)
}

// enterAgain begins a shard for which Enter returned Later. Its batch is not done, so Close
// still waits.
func (s *Store) enterAgain(b *saving, i int) {
	w := s.newWriting(b)
	w.enter(i)
	w.end()
}

// open finds a slot for a block. No other writer works on the block, so the answer of
// holds is certain.
func (w *writing) open(key kv.Key) (p place, err error) {
	if w.s.holds(key) {
		return place{}, errExists
	}
	p, ok := w.s.take()
	if !ok {
		w.end() // what was gathered must not wait until a segment is free
		p, err = w.s.await(w.b)
	}
	if err == nil {
		w.b.wait.Reset()
	}
	return p, err
}

// await waits for a slot.
func (s *Store) await(b *saving) (place, error) {
	patience := time.NewTimer(b.wait.Left(s.o.Timeout))
	defer patience.Stop()
	for {
		s.mu.RLock()
		isReady, trouble := s.isReady, s.trouble
		s.mu.RUnlock()
		if p, ok := s.take(); ok {
			return p, nil
		}
		if trouble.lasts() {
			return place{}, trouble.error()
		}
		select {
		case <-isReady: // others make progress
			b.wait.Reset()
			patience.Reset(b.wait.Left(s.o.Timeout))
		case <-b.Context().Done():
			return place{}, b.Ended()
		case <-patience.C:
			if trouble.failures > 0 {
				return place{}, trouble.error()
			}
			return place{}, fmt.Errorf("%w: no segment became free within %v", kv.ErrFull, s.o.Timeout)
		}
	}
}

// holds reports whether the table has a block that can be read, as far as is known.
func (s *Store) holds(key kv.Key) bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	_, ok := s.foundLocked(key)
	return ok
}

// write adds a shard to the run, or begins a new one.
func (w *writing) write(blk *block, i int) {
	if w.block == blk && i == w.run.First+w.run.N && w.b.Extend(&w.run, maxRunBytes) {
		return
	}
	w.cut()
	w.block, w.run = blk, w.b.Run(i)
}

// cut ends the run and queues it as one move.
func (w *writing) cut() {
	if w.block == nil {
		return
	}
	s, b, blk, run := w.s, w.b, w.block, w.run
	w.block = nil
	p := blk.Payload
	offset := s.geo.slotAt(p.slot) + int64(b.Shard(run.First).Index)*s.o.Layout.ShardBytes
	w.Add(s.pinned(p.seg, transfer.Op{File: p.seg.data, Offset: offset, Buf: run.Buf, Write: true, Done: func(n int, err error) {
		s.computeBulk(func() { s.written(b, blk, run, wholly(n, len(run.Buf), err)) })
	}}))
}

// end hands everything that was gathered to the engine.
func (w *writing) end() {
	w.cut()
	w.Flush()
}

// wholly makes a short write an error.
func wholly(n, want int, err error) error {
	if err == nil && n < want {
		return io.ErrShortWrite
	}
	return err
}

// written is called when a run has been written or could not be.
func (s *Store) written(b *saving, blk *block, run batch.Run, err error) {
	seg := blk.Payload.seg
	if err != nil {
		s.blame(seg, false, err)
		err = seg.explain(err)
	} else {
		s.worked(false)
	}
	for i := run.First; i < run.First+run.N; i++ {
		shard := b.Shard(i)
		if err != nil {
			if s.unfinished.Failed(blk, shard.Index) {
				s.drop([]*block{blk})
			}
			b.Settle(i, err)
			continue
		}
		blk.Sums[shard.Index] = sumOf(shard)
		outcome := s.unfinished.Written(blk, shard.Index)
		switch outcome {
		case assembly.Whole:
			s.publish(b, blk, i)
			continue
		case assembly.Dead:
			s.drop([]*block{blk})
		}
		b.Settle(i, outcome.Err(blk.Key))
	}
}

// publish writes the head behind the data. When that is done the block is found. A crash
// before it leaves a hole, a crash after it a block.
func (s *Store) publish(b *saving, blk *block, i int) {
	p := blk.Payload
	buf, err := s.newHeads.get(context.Background())
	if err != nil {
		s.drop([]*block{blk})
		b.Settle(i, err)
		return
	}
	head := blockhead.Head{
		Namespace: s.o.Namespace, Key: blk.Key, BlockBytes: s.o.Layout.BlockBytes,
		Sequence: s.generationOf(p.seg), Sums: blk.Sums,
	}
	head.Encode(buf)
	// What has begun is finished, even if the batch is cancelled.
	s.engine.Do(context.Background(), []transfer.Op{s.pinned(p.seg, transfer.Op{
		File: p.seg.data, Offset: s.geo.headAt(p.slot), Buf: buf, Write: true, Ahead: true,
		Late: func() { s.newHeads.put(buf, nil) },
		Done: func(n int, err error) {
			s.newHeads.put(buf, err)
			s.compute(func() { s.published(b, blk, i, wholly(n, blockhead.Size, err)) })
		},
	})})
}

func (s *Store) published(b *saving, blk *block, i int, err error) {
	if err != nil {
		s.blame(blk.Payload.seg, true, err)
		s.mu.Lock()
		s.leaveStale(blk.Payload, blk.Key)
		s.mu.Unlock()
		s.drop([]*block{blk})
		b.Settle(i, blk.Payload.seg.explain(err))
		return
	}
	p := blk.Payload
	s.mu.Lock()
	s.replaceLocked(blk.Key)
	s.setFound(blk.Key, p)
	s.releaseLocked(p)
	s.mu.Unlock()
	s.worked(true)
	s.unpin(p.seg)
	s.unfinished.Finish(blk)
	b.Settle(i, nil)
}

// generationOf returns the generation of a pinned segment.
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
