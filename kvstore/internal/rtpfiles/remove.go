package rtpfiles

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// deleteInOrder deletes blocks one by one in the reverse of the order given, that of a prompt:
// RTP-LLM takes a prompt for stored if its last blocks are. So it ends with the first that
// cannot be deleted.
func deleteInOrder(ctx context.Context, blocks []kv.Key, remove func(context.Context, kv.Key) error) error {
	for i, key := range slices.Backward(blocks) {
		err := remove(ctx, key)
		switch {
		case err == nil:
		case ctx.Err() != nil, errors.Is(err, kv.ErrClosed), i == 0:
			return err
		default:
			return fmt.Errorf("%w; block %s and the %d before it in the list are left, since RTP-LLM takes a prompt for stored that has its last blocks: delete them again when this is mended", err, key, i)
		}
	}
	return nil
}

// alone is the store of an engine whose files have one block each.
type alone struct{ *blockfiles.Store }

// Delete deletes the last block first.
func (s alone) Delete(ctx context.Context, blocks []kv.Key) error {
	if len(blocks) == 0 {
		return s.Store.Delete(ctx, nil)
	}
	return deleteInOrder(ctx, blocks, func(ctx context.Context, key kv.Key) error {
		return s.Store.Delete(ctx, []kv.Key{key})
	})
}

// Delete deletes the last block first. A file goes with all blocks that are in it.
func (x *items) Delete(ctx context.Context, blocks []kv.Key) error {
	ctx, leave, err := x.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	if err := ctx.Err(); err != nil {
		return err
	}
	return x.group.Explain(deleteInOrder(ctx, blocks, x.remove))
}

func (x *items) remove(ctx context.Context, key kv.Key) error {
	if isNumber(key) {
		if err := x.removeFiles(ctx, key); err != nil {
			return err
		}
	}
	x.forget([]kv.Key{key})
	return x.Store.Delete(ctx, []kv.Key{key})
}

// removeFiles removes the files that a block is in, and then the records that say so: a
// process that is killed in between leaves records of nothing.
func (x *items) removeFiles(ctx context.Context, key kv.Key) error {
	spots, err := x.recorded(ctx, []kv.Key{key}, x.spotLog.Again)
	if err != nil {
		return err
	}
	all := spots[key]
	if f, ok := x.format.file([]kv.Key{key}); ok {
		all = append(all, spot{file{f, 1}, 0})
	}
	for _, s := range all {
		files, err := x.filesOf(s.blocks)
		if err == nil {
			err = files.Delete(ctx, []kv.Key{s.key})
		}
		if err != nil {
			return err
		}
	}
	if len(spots[key]) == 0 {
		return nil
	}
	return x.bounded(ctx, func() error {
		_, err := x.spotLog.Forget(key)
		return err
	})
}

// keysChunk is how many blocks Keys looks for at a time.
const keysChunk = 256

// Keys yields the blocks that have files of their own, and those that the log has a file of.
func (x *items) Keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		seen := map[kv.Key]bool{}
		for key, err := range x.keys(ctx) {
			if err != nil {
				yield(kv.Key{}, x.group.Explain(err))
				return
			}
			if seen[key] {
				continue
			}
			seen[key] = true
			if !yield(key, nil) {
				return
			}
		}
	}
}

func (x *items) keys(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		for key, err := range x.Store.Keys(ctx) {
			if !yield(key, err) || err != nil {
				return
			}
		}
		for key, err := range x.keysInItems(ctx) {
			if !yield(key, err) || err != nil {
				return
			}
		}
	}
}

func (x *items) keysInItems(ctx context.Context) iter.Seq2[kv.Key, error] {
	return func(yield func(kv.Key, error) bool) {
		found := make(chan []kv.Key, 1)
		if err := x.bounded(ctx, func() error {
			some, err := x.spotLog.Keys()
			found <- some
			return err
		}); err != nil {
			yield(kv.Key{}, err)
			return
		}
		for chunk := range slices.Chunk(<-found, keysChunk) {
			spots, err := x.inFiles(ctx, chunk)
			if err != nil {
				yield(kv.Key{}, err)
				return
			}
			for key := range spots {
				if !yield(key, nil) {
					return
				}
			}
		}
		if x.format.fixed() {
			x.keysOfOnes(ctx, yield)
		}
	}
}

// inFiles is spots within a call of the group.
func (x *items) inFiles(ctx context.Context, blocks []kv.Key) (map[kv.Key]spot, error) {
	ctx, leave, err := x.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return x.spots(ctx, blocks, true)
}

// keysOfOnes yields the blocks of items with one block.
func (x *items) keysOfOnes(ctx context.Context, yield func(kv.Key, error) bool) {
	files, err := x.filesOf(1)
	if err != nil {
		yield(kv.Key{}, err)
		return
	}
	for f, err := range files.Keys(ctx) {
		if err != nil {
			yield(kv.Key{}, err)
			return
		}
		if key, ok := oneBlock(f); ok && !yield(key, nil) {
			return
		}
	}
}
