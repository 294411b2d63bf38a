package ucmfiles

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
			claims[shard.Key] = c
			order = append(order, c)
		}
		c.shards = append(c.shards, i)
	}
	s.group.Go(func() { b.write(claims) })
	for _, c := range order {
		c.begin(func() {})
	}
	return b.Task, nil
}

// sumOf is the checksum of a shard.
func sumOf(shard kv.Shard) uint64 { return blockhead.Sum(shard.Buf) }

// write hands moves to the engine as their files are created.
func (b *moving) write(claims map[kv.Key]*claim) {
	q := batch.Queue{Engine: b.s.engine, Context: b.Context()}
	for i := 0; i < b.Len(); {
		c := claims[b.Shard(i).Key]
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
		q.Add(b.move(r, block))
	}
	q.Flush()
}

// move returns the move of a run that this batch has claimed.
func (b *moving) move(r batch.Run, block *assembly.Block[*temporary]) transfer.Op {
	d := blockhead.NewDigest(b.s.o.Layout.ShardBytes, r.N)
	return transfer.Op{
		File:   block.Payload.file,
		Offset: int64(b.Shard(r.First).Index) * b.s.o.Layout.ShardBytes,
		Buf:    r.Buf,
		Write:  true,
		Piece:  d.Add,
		Done: func(n int, err error) {
			if err == nil && n == len(r.Buf) {
				b.s.digested(r, d, func() { b.wrote(r, block, d.Sums()) })
				return
			}
			if err == nil {
				err = io.ErrShortWrite
			}
			for i := r.First; i < r.First+r.N; i++ {
				b.s.unclaim(block, b.Shard(i).Index)
				b.settle(i, err)
			}
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
		Bulk: 1, // loads overtake it
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
