package assembly

import (
	"context"
	"fmt"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Writer is a batch of Save. Of the blocks that it has all shards of, it is the only writer.
// All other batches of a store are one writer together, because nothing tells whose a part
// of a block is.
type Writer struct {
	ctx   context.Context // of the batch: it ends when the batch is cancelled or done
	whole map[kv.Key]bool // nil: blocks have one shard, so all are whole
}

// WriterOf returns the writer that a batch with these shards is. ctx is the task's.
func WriterOf(ctx context.Context, l kv.Layout, shards []kv.Shard) *Writer {
	w := &Writer{ctx: ctx}
	n := l.Shards()
	if n == 1 {
		return w
	}
	type seen struct {
		count int
		bits  [kv.MaxShards/64 + 1]uint64
	}
	blocks := map[kv.Key]*seen{}
	w.whole = map[kv.Key]bool{}
	for _, s := range shards {
		b := blocks[s.Key]
		if b == nil {
			b = &seen{}
			blocks[s.Key] = b
		}
		if word, bit := &b.bits[s.Index/64], uint64(1)<<(s.Index%64); *word&bit == 0 {
			*word |= bit
			if b.count++; b.count == n {
				w.whole[s.Key] = true
			}
		}
	}
	return w
}

// Owns reports whether the batch has all shards of a block.
func (w *Writer) Owns(key kv.Key) bool { return w.whole == nil || w.whole[key] }

// rival is a shard that came while another caller was writing it.
type rival struct {
	index int
	sum   uint64
}

// restOf is how long no part of a disputed block must come before parts of it are taken
// again. A writer that goes on, layer by layer, comes much sooner.
const restOf = 10 * time.Second

// conflict is the error of a part of a disputed block.
func conflict(key kv.Key) error {
	return fmt.Errorf("%w: block %s; save it in one batch", kv.ErrConflict, key)
}

// owned reports whether a batch that is under way has the block for itself.
func (b *Block[P]) owned() bool { return b.owner != nil && b.owner.ctx.Err() == nil }

// waitForOwner has again called when the block has ended, or its owner's batch has. Called
// with the lock.
func (t *Table[P]) waitForOwner(b *Block[P], again func()) {
	if len(b.after) == 0 {
		context.AfterFunc(b.owner.ctx, func() {
			t.mu.Lock()
			t.wakeAll(b)
		})
	}
	b.after = append(b.after, again)
}

// own gives a block of which no shard is being written to another writer, which writes all
// of it: what is there, also of a batch that was cancelled or has failed, may have other
// bytes. Called with the lock.
func (b *Block[P]) own(w *Writer) {
	b.owner, b.written, b.rivals = w, 0, nil
	clear(b.state)
	clear(b.Sums)
}

// dispute gives up a shared block, because one of its shards came with different bytes. It
// reports whether nobody writes to it any more. Called with the lock.
func (t *Table[P]) dispute(b *Block[P]) (dead bool) {
	b.disputed, b.owner = true, nil
	t.disputes[b.Key] = t.now()
	b.moving = b.writing == 0
	return b.moving
}

// isDisputed reports whether parts of a block are refused, and notes that one has come.
// Called with the lock.
func (t *Table[P]) isDisputed(key kv.Key) bool {
	since, ok := t.disputes[key]
	switch {
	case !ok:
		return false
	case t.now().Sub(since) >= restOf:
		delete(t.disputes, key)
		return false
	}
	t.disputes[key] = t.now()
	return true
}
