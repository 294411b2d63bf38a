package ucmfiles

import (
	"context"
	"io"

	"github.com/kv3fs/kv3fs/kvstore/internal/assembly"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/workerpool"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Save writes the shards of each block into a temporary file, in the order given. A
// shard is settled when it is written, a block's last one when the block is visible.
func (s *Store) Save(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	b, err := s.begin(ctx, shards, true)
	if err != nil {
		return nil, err
	}
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
	task := b.task
	for _, c := range order {
		c.begin(func() {})
	}
	go b.write(claims)
	return task, nil
}

// write hands moves to the engine as their files are made.
func (b *batch) write(claims map[kv.Key]*claim) {
	defer b.s.leave()
	n := len(b.shards)
	ctx := b.task.Context()
	var ops []transfer.Op
	flush := func() {
		b.s.engine.Do(ctx, ops)
		ops = nil
	}
	for i := 0; i < n; {
		c := claims[b.shards[i].Key]
		select {
		case <-c.ready:
		default:
			flush()
			<-c.ready
		}
		block := c.mine(i)
		if block == nil {
			i++
			continue
		}
		r := b.runFrom(i, func(k int) bool { return c.mine(k) == block })
		i += r.n
		ops = append(ops, b.move(r, block))
		if len(ops) == opsAtOnce {
			flush()
		}
	}
	flush()
}

// move is the move of a run that this batch has claimed.
func (b *batch) move(r run, block *assembly.Block[*temporary]) transfer.Op {
	d := blockhead.NewDigest(b.s.o.Layout.ShardBytes, r.n)
	return transfer.Op{
		File:   block.Payload.file,
		Offset: int64(b.shards[r.first].Index) * b.s.o.Layout.ShardBytes,
		Buf:    r.buf,
		Write:  true,
		Piece:  d.Add,
		Done: func(n int, err error) {
			if err == nil && n == len(r.buf) {
				b.s.digested(r, d, func() { b.wrote(r, block, d.Sums()) })
				return
			}
			if err == nil {
				err = io.ErrShortWrite
			}
			for i := r.first; i < r.first+r.n; i++ {
				b.s.unclaim(block, b.shards[i].Index)
				b.settle(i, err)
			}
		},
	}
}

// unclaim lets go of a shard that is not written.
func (s *Store) unclaim(block *assembly.Block[*temporary], index int) {
	if s.unfinished.Failed(block, index) {
		s.giveUp(block, func() {})
	}
}

// wrote settles the shards of a run, and sees to the block if it is whole.
func (b *batch) wrote(r run, block *assembly.Block[*temporary], sums []uint64) {
	for k, sum := range sums {
		i := r.first + k
		index := b.shards[i].Index
		block.Sums[index] = sum
		if b.s.unfinished.Written(block, index) {
			b.commit(i, block)
		} else {
			b.settle(i, nil)
		}
	}
}

// commit makes a block visible and settles its last shard.
func (b *batch) commit(last int, block *assembly.Block[*temporary]) {
	var err error
	b.s.opens.Go(workerpool.Job{
		Context: context.Background(),
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
