package blockfiles

import (
	"context"
	"io"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
)

// Save writes the shards of each block into a temporary file, in the order given. A shard
// is settled when it is written, the last one of a block when the block is visible.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	if err := s.checkPlaces(shards); err != nil {
		return nil, err
	}
	b, err := s.begin(ctx, batch.Save, shards)
	if err != nil {
		return nil, err
	}
	b.writer = assembly.WriterOf(b.Context(), s.o.Layout, shards)
	claims := map[kv.Key]*claim{}
	var order []*claim
	for i, shard := range shards {
		c := claims[shard.Key]
		if c == nil {
			c = b.claim(shard.Key)
			c.number = len(order)
			claims[shard.Key] = c
			order = append(order, c)
		}
		c.shards = append(c.shards, i)
	}
	s.group.Go(func() { b.write(claims, order) })
	return b.Task, nil
}

// checkPlaces refuses a batch with a key that can have no block.
func (s *Store) checkPlaces(shards []kv.Shard) error {
	for i, shard := range shards {
		if i > 0 && shard.Key == shards[i-1].Key {
			continue
		}
		if _, err := s.o.Format.Place(shard.Key); err != nil {
			return &kv.BatchError{Shard: i, Key: shard.Key, Reason: err.Error()}
		}
	}
	return nil
}

// bulkCall is the weight of what a save does for a block besides moving bytes. Loads overtake
// it, and eight are done at once: more would wait for one another, because a kernel makes and
// renames the files of a directory one by one, and would keep loads from the processors.
const bulkCall = workerpool.BulkBytes / 8

// ahead is how many blocks of a batch are opened before their turn, several at once.
const ahead = 64

// write makes the claims, and hands moves to the engine as their files are created. While
// it waits for a place for a file, nothing of the batch holds one up: what it has claimed is
// being written, or rests and can be closed.
func (b *moving) write(claims map[kv.Key]*claim, order []*claim) {
	q := batch.Queue{Engine: b.s.engine, Context: b.Context()}
	begun := 0
	for i := 0; i < b.Len(); {
		c := claims[b.Shard(i).Key]
		for begun < min(len(order), c.number+ahead) && b.s.drafts.try() {
			order[begun].begin(func() {})
			begun++
		}
		if begun == c.number {
			q.Flush()
			if err := b.s.waitForDraft(b.Context()); err != nil {
				c.fail(err)
			} else {
				c.begin(func() {})
			}
			begun++
		}
		select {
		case <-c.ready:
		default:
			q.Flush()
			<-c.ready
		}
		block := c.mine(i)
		if block == nil {
			i++
			continue
		}
		r := b.runFrom(i, func(k int) bool { return c.mine(k) == block })
		i += r.N
		b.add(&q, r, block)
	}
	q.Flush()
}

// add queues the move of a run that this batch has claimed. If the file must be opened
// again, the moves that are queued begin first: others may wait for their files.
func (b *moving) add(q *batch.Queue, r batch.Run, block *assembly.Block[*temporary]) {
	f := b.s.drafts.use(block.Payload, nil)
	if f == nil {
		q.Flush()
		var err error
		if f, err = b.s.useDraft(b.Context(), block.Payload); err != nil {
			b.failed(r, block, err)
			return
		}
	}
	q.Add(b.move(r, block, f))
}

// failed settles a run that this batch has claimed and cannot write.
func (b *moving) failed(r batch.Run, block *assembly.Block[*temporary], err error) {
	for i := r.First; i < r.First+r.N; i++ {
		b.s.unclaim(block, b.Shard(i).Index)
		b.settle(i, err)
	}
}

// move returns the move of a run into a file that is in use.
func (b *moving) move(r batch.Run, block *assembly.Block[*temporary], f transfer.File) transfer.Op {
	d := blockhead.NewDigest(b.s.o.Layout.ShardBytes, r.N)
	return transfer.Op{
		File:   f,
		Offset: block.Payload.at.Offset + int64(b.Shard(r.First).Index)*b.s.o.Layout.ShardBytes,
		Buf:    r.Buf,
		Device: b.Shard(r.First).Device,
		Bytes:  b.bytes(r),
		Write:  true,
		Piece:  d.Add,
		Done: func(n int, err error) {
			b.s.doneWriting(block.Payload)
			if err == nil && n == b.bytes(r) {
				b.s.digested(r, d, func() { b.wrote(r, block, d.Sums()) })
				return
			}
			if err == nil {
				err = io.ErrShortWrite
			}
			b.failed(r, block, err)
		},
	}
}

// unclaim releases a shard that is not written.
func (s *Store) unclaim(block *assembly.Block[*temporary], index int) {
	if s.unfinished.Failed(block, index) {
		s.giveUp(block, func() {})
	}
}

// wrote settles the shards of a run, and publishes the block if it is whole.
func (b *moving) wrote(r batch.Run, block *assembly.Block[*temporary], sums []uint64) {
	for k, sum := range sums {
		i := r.First + k
		index := b.Shard(i).Index
		block.Sums[index] = sum
		outcome := b.s.unfinished.Written(block, index)
		switch outcome {
		case assembly.Whole:
			b.commit(i, block)
			continue
		case assembly.Dead:
			b.s.giveUp(block, func() {})
		}
		b.settle(i, outcome.Err(block.Key))
	}
}

// commit makes a block visible and settles its last shard.
func (b *moving) commit(last int, block *assembly.Block[*temporary]) {
	var err error
	b.s.opens.Go(workerpool.Job{
		Bulk: bulkCall,
		Run: func() {
			err = b.s.publish(block.Payload, block.Key, block.Sums)
		},
		Done: func(failed error) {
			switch {
			case failed == nil && err == nil:
				b.s.unfinished.Finish(block)
			case failed == nil || failed == workerpool.ErrOverdue:
				b.s.counters.DroppedBlocks.Add(1)
				b.s.unfinished.Finish(block)
			default:
				b.s.giveUp(block, func() {})
			}
			if failed == nil {
				failed = err
			}
			b.settle(last, failed)
		},
	})
}
