package sums

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Record records the checksums of a block's shards, before it becomes visible. Nothing
// is written if this process's own log has them.
func (ls *Logs) Record(key kv.Key, sums []uint64) error {
	return ls.retrying(func() error { return ls.record(key, sums) })
}

// RecordAgain records those variants of a visible block that another process has made
// void since they were recorded.
func (ls *Logs) RecordAgain(key kv.Key, variants ...[]uint64) error {
	return ls.retrying(func() error {
		if err := ls.catchUp(time.Now()); err != nil {
			return err
		}
		for _, sums := range variants {
			if err := ls.record(key, sums); err != nil {
				return err
			}
		}
		return nil
	})
}

func (ls *Logs) record(key kv.Key, sums []uint64) error {
	ls.writing.Lock()
	defer ls.writing.Unlock()
	if _, err := ls.writable(); err != nil { // checked before look: nobody else reads a removed log
		return err
	}
	if known, err := ls.recorded(key, sums); known || err != nil {
		return err
	}
	return ls.write(&record{stamp: rand.Uint64(), key: key, shape: ls.shape, sums: sums})
}

// recorded reports whether this process's own log has these checksums. A record in another
// log does not count, because its owner may be about to make it void or to drop it. Nor
// does one in this log while it is being compacted, because that may drop it, too.
// writing is held.
func (ls *Logs) recorded(key kv.Key, sums []uint64) (bool, error) {
	if ls.compacting {
		return false, nil
	}
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	if err := ls.usable(); err != nil {
		return false, err
	}
	for _, e := range ls.index.entries(key) {
		if e.log != ls.own || ls.index.shapes[e.shape] != ls.shape {
			continue
		}
		if len(sums) == 1 {
			if e.sum == sums[0] {
				return true, nil
			}
			continue
		}
		r, err := ls.logs[e.log].at(e.at, key, ls.shape)
		switch {
		case errors.Is(err, errDamaged), errors.Is(err, errUnread):
		case err != nil:
			return false, err
		case slices.Equal(r.sums, sums):
			return true, nil
		}
	}
	return false, nil
}

// Forget makes void the records of a block that has been removed, those of the store's
// namespace and size that this process knows, and returns their variants. Records of
// other namespaces and sizes stay.
func (ls *Logs) Forget(key kv.Key) (void [][]uint64, err error) {
	err = ls.retrying(func() error {
		void, err = ls.forget(key)
		return err
	})
	return void, err
}

func (ls *Logs) forget(key kv.Key) (void [][]uint64, err error) {
	ls.writing.Lock()
	defer ls.writing.Unlock()
	ls.mu.RLock()
	var stamps []uint64
	for _, e := range ls.index.entries(key) {
		shape := ls.index.shapes[e.shape]
		if !ls.ours(shape) {
			continue
		}
		r, err := ls.logs[e.log].at(e.at, key, shape)
		if errors.Is(err, errDamaged) || errors.Is(err, errUnread) {
			continue // there is nothing to make void
		}
		if err != nil {
			ls.mu.RUnlock()
			return nil, err
		}
		stamps = append(stamps, r.stamp)
		if shape.Shards == ls.shape.Shards {
			void = append(void, r.sums)
		}
	}
	ls.mu.RUnlock()
	for _, stamp := range stamps {
		if err := ls.write(&record{forget: true, stamp: stamp, key: key, shape: Shape{Namespace: ls.shape.Namespace}}); err != nil {
			return void, err
		}
	}
	return void, nil
}

// writable returns this process's log, or an error if it was removed.
func (ls *Logs) writable() (*log, error) {
	ls.mu.RLock()
	own, err := ls.ownLog()
	ls.mu.RUnlock()
	if err == nil && own.removed() {
		err = fmt.Errorf("write %s: %w", own.f.Name(), fs.ErrNotExist)
	}
	return own, err
}

// write appends to this process's log. writing is held.
func (ls *Logs) write(r *record) error {
	raw := r.append(make([]byte, 0, r.bytes()))
	ls.mu.RLock()
	own, err := ls.ownLog()
	ls.mu.RUnlock()
	if err != nil {
		return err
	}
	at := own.end
	if err := own.append(raw); err != nil {
		return err
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.learn(ls.own, at, r)
	return nil
}
