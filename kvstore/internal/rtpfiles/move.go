package rtpfiles

import (
	"context"
	"errors"
	"slices"

	"github.com/kv3fs/kv3fs/kvstore/internal/batch"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// begin admits a batch and runs it.
func (x *items) begin(ctx context.Context, m batch.Method, shards []kv.Shard, run func(b *batch.Batch)) (*kv.Task, error) {
	b, err := x.group.Begin(ctx, m, slices.Clone(shards), x.limits[m])
	if err != nil {
		return nil, err
	}
	x.group.Go(func() { run(b) })
	return b.Task, nil
}

// Load loads each block from where it is.
func (x *items) Load(ctx context.Context, shards []kv.Shard) (*kv.Task, error) {
	return x.begin(ctx, batch.Load, shards, func(b *batch.Batch) {
		missed, tried := x.load(b, all(b), nil)
		if len(missed) > 0 { // those may have been moved since they were looked for
			missed, _ = x.load(b, missed, tried)
		}
		b.SettleAll(missed, kv.ErrMiss)
	})
}

func all(b *batch.Batch) []int {
	which := make([]int, b.Len())
	for i := range which {
		which[i] = i
	}
	return which
}

// keysOf returns the keys of some shards of a batch, in order, each once.
func keysOf(b *batch.Batch, which []int) []kv.Key {
	var keys []kv.Key
	seen := map[kv.Key]bool{}
	for _, i := range which {
		if key := b.Shard(i).Key; !seen[key] {
			seen[key] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// load loads shards from where their blocks are now, and settles them, but for those of
// blocks that are not there. It leaves out those whose blocks are where they were not found
// before.
func (x *items) load(b *batch.Batch, which []int, tried map[kv.Key]spot) (missed []int, now map[kv.Key]spot) {
	spots, err := x.spots(b.Context(), keysOf(b, which), false)
	if err != nil {
		b.SettleAll(which, err)
		return nil, nil
	}
	parts := map[int]*part{} // by the number of blocks in a file; 0: files of the blocks' own
	var order []int
	for _, i := range which {
		shard := b.Shard(i)
		at, inFile := spots[shard.Key]
		if before, again := tried[shard.Key]; tried != nil && again == inFile && before == at {
			missed = append(missed, i)
			continue
		}
		n := 0
		if inFile {
			n = at.blocks
			shard = x.within(shard, at)
		}
		p := parts[n]
		if p == nil {
			p = &part{}
			parts[n] = p
			order = append(order, n)
		}
		p.which, p.shards = append(p.which, i), append(p.shards, shard)
	}
	lost := make(chan []int, len(order))
	for _, n := range order {
		x.group.Go(func() { lost <- x.loadPart(b, n, parts[n]) })
	}
	for range order {
		missed = append(missed, <-lost...)
	}
	slices.Sort(missed)
	return missed, spots
}

// part is some shards of a batch, as another store gets them.
type part struct {
	which  []int // in the batch
	shards []kv.Shard
}

// within returns a shard as one of the file that its block is in.
func (x *items) within(shard kv.Shard, at spot) kv.Shard {
	shard.Key, shard.Index = at.key, at.at*x.o.Layout.Shards()+shard.Index
	return shard
}

// storeOf returns the store of files of so many blocks, that of blocks with files of their own
// for 0.
func (x *items) storeOf(blocks int) (*blockfiles.Store, error) {
	if blocks == 0 {
		return x.Store, nil
	}
	return x.filesOf(blocks)
}

func (x *items) loadPart(b *batch.Batch, blocks int, p *part) (missed []int) {
	var t *kv.Task
	s, err := x.storeOf(blocks)
	if err == nil {
		t, err = s.Load(b.Context(), p.shards)
	}
	if err != nil {
		b.SettleAll(p.which, err)
		return nil
	}
	loaded := map[kv.Key]bool{}
	for n, err := range t.All() {
		i := p.which[n]
		key := b.Shard(i).Key
		if errors.Is(err, kv.ErrMiss) && !errors.Is(err, kv.ErrCorrupt) {
			missed = append(missed, i)
			continue
		}
		if err == nil {
			loaded[key] = true
		}
		b.SetVersion(i, t.Version(n))
		b.Settle(i, named(err, key))
	}
	// The rest of a block from elsewhere would be another Save's.
	return slices.DeleteFunc(missed, func(i int) bool {
		if loaded[b.Shard(i).Key] {
			b.Settle(i, kv.ErrMiss)
			return true
		}
		return false
	})
}

// named has an error of a file name the block.
func named(err error, key kv.Key) error {
	var corrupt *kv.CorruptError
	if errors.As(err, &corrupt) {
		return &kv.CorruptError{Key: key, Where: corrupt.Where, What: corrupt.What}
	}
	return err
}
