package sums

import (
	"errors"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Finding is what is recorded of a block.
type Finding struct {
	// Sums are the checksums of the block's shards, in one variant or several:
	// writers that computed the block with different results have all recorded it.
	Sums [][]uint64

	// Known: there is a record of a block of the namespace and size that the logs were
	// opened for, if perhaps cut into other shards. Foreign: there are only records of
	// other namespaces or sizes.
	Known, Foreign bool

	// Unread is why there may be more checksums: a record or a log cannot be read now.
	Unread error

	// Others are the sizes of blocks of other shapes that have a record.
	Others []int64
}

// Find returns what is recorded of a block that was visible at a time. It finds every
// record from before that time, and perhaps later ones.
func (ls *Logs) Find(key kv.Key, visible time.Time) (found Finding, err error) {
	err = ls.retrying(func() error {
		found, err = ls.look(key)
		if err == nil && len(found.Sums) == 0 {
			found, err = ls.again(key, visible)
		}
		return err
	})
	return found, err
}

// Again is Find for a block that does not match what Find returned: a writer may have
// recorded another variant since, or the record may have become void.
func (ls *Logs) Again(key kv.Key, visible time.Time) (found Finding, err error) {
	err = ls.retrying(func() error {
		found, err = ls.again(key, visible)
		return err
	})
	return found, err
}

func (ls *Logs) again(key kv.Key, visible time.Time) (Finding, error) {
	if err := ls.catchUp(visible); err != nil {
		return Finding{}, err
	}
	return ls.look(key)
}

// catchUp reads the logs as they were at that time or later. A caller that waited while
// another one did so does not do it again.
func (ls *Logs) catchUp(since time.Time) error {
	ls.mu.RLock()
	current := !ls.asOf.Before(since)
	ls.mu.RUnlock()
	if current {
		return nil
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if err := ls.usable(); err != nil {
		return err
	}
	if !ls.asOf.Before(since) {
		return nil
	}
	return ls.refresh(time.Now())
}

// ours reports whether blocks of a shape have the namespace and size that the logs were
// opened for.
func (ls *Logs) ours(s Shape) bool {
	return s.Namespace == ls.shape.Namespace && s.BlockBytes == ls.shape.BlockBytes
}

func (ls *Logs) look(key kv.Key) (Finding, error) {
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	if err := ls.usable(); err != nil {
		return Finding{}, err
	}
	entries := ls.index.entries(key)
	found := Finding{Unread: ls.unread}
	for _, e := range entries {
		shape := ls.index.shapes[e.shape]
		if !ls.ours(shape) {
			found.Others = append(found.Others, shape.BlockBytes)
			continue
		}
		found.Known = true
		switch {
		case shape.Shards != ls.shape.Shards:
			// The same block in other shards: there is nothing to compare a shard with.
		case shape.Shards == 1:
			found.Sums = append(found.Sums, []uint64{e.sum})
		default:
			r, err := ls.logs[e.log].at(e.at, key, shape)
			switch {
			case errors.Is(err, errDamaged):
				continue
			case errors.Is(err, errUnread):
				found.Unread = err
				continue
			case err != nil:
				return Finding{}, err
			}
			found.Sums = append(found.Sums, r.sums)
		}
	}
	found.Foreign = len(found.Others) > 0 && !found.Known
	return found, nil
}

// Keys returns the keys of all blocks that the logs' namespace and size have a record of.
func (ls *Logs) Keys() ([]kv.Key, error) {
	var all []kv.Key
	err := ls.retrying(func() error {
		if err := ls.catchUp(time.Now()); err != nil {
			return err
		}
		ls.mu.RLock()
		defer ls.mu.RUnlock()
		if err := ls.usable(); err != nil {
			return err
		}
		all = all[:0]
		for key := range ls.index.first {
			if slices.ContainsFunc(ls.index.entries(key), func(e entry) bool { return ls.ours(ls.index.shapes[e.shape]) }) {
				all = append(all, key)
			}
		}
		return nil
	})
	return all, err
}
