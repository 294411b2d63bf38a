package sums

import (
	"errors"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Finding is what is recorded of a block.
type Finding struct {
	// Sums are the checksums of the block's shards, in one variant or several:
	// writers that computed the block with different results have all recorded it.
	Sums [][]uint64

	// Known: there is a record of a block of the book's namespace and size, if perhaps
	// cut into other shards. Foreign: there are only others.
	Known, Foreign bool

	// Others are the sizes of blocks of other shapes that have a record.
	Others []int64
}

// Find says what is recorded of a block that was visible at a time. Only what was
// recorded before is certain to be found.
func (b *Book) Find(key kv.Key, visible time.Time) (found Finding, err error) {
	err = b.retrying(func() error {
		found, err = b.look(key)
		if err == nil && len(found.Sums) == 0 {
			found, err = b.again(key, visible)
		}
		return err
	})
	return found, err
}

// Again is Find for a block that does not match what was found: a writer may have
// recorded another variant since.
func (b *Book) Again(key kv.Key, visible time.Time) (found Finding, err error) {
	err = b.retrying(func() error {
		found, err = b.again(key, visible)
		return err
	})
	return found, err
}

func (b *Book) again(key kv.Key, visible time.Time) (Finding, error) {
	if err := b.catchUp(visible); err != nil {
		return Finding{}, err
	}
	return b.look(key)
}

// catchUp reads the logs as they were at that time or later. Whoever has waited for
// another one to do so need not do it again.
func (b *Book) catchUp(since time.Time) error {
	b.mu.RLock()
	current := !b.asOf.Before(since)
	b.mu.RUnlock()
	if current {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if err := b.usable(); err != nil {
		return err
	}
	if !b.asOf.Before(since) {
		return nil
	}
	return b.refresh(time.Now())
}

// ours reports whether blocks of a shape are of this book's namespace and size.
func (b *Book) ours(s Shape) bool {
	return s.Namespace == b.shape.Namespace && s.BlockBytes == b.shape.BlockBytes
}

func (b *Book) look(key kv.Key) (Finding, error) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if err := b.usable(); err != nil {
		return Finding{}, err
	}
	entries := b.index.entries(key)
	var found Finding
	for _, e := range entries {
		shape := b.index.shapes[e.shape]
		if !b.ours(shape) {
			found.Others = append(found.Others, shape.BlockBytes)
			continue
		}
		found.Known = true
		switch {
		case shape.Shards != b.shape.Shards:
			// The same block, cut another way: nothing to compare a shard with.
		case shape.Shards == 1:
			found.Sums = append(found.Sums, []uint64{e.sum})
		default:
			r, err := b.logs[e.log].at(e.at, shape.Shards)
			if errors.Is(err, errDamaged) {
				continue
			}
			if err != nil {
				return Finding{}, err
			}
			found.Sums = append(found.Sums, r.sums)
		}
	}
	found.Foreign = len(found.Others) > 0 && !found.Known
	return found, nil
}
