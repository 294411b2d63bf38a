package sums

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Record records the checksums of a block's shards, before it becomes visible. Nothing
// is written if they are known.
func (b *Book) Record(key kv.Key, sums []uint64) error {
	return b.retrying(func() error { return b.record(key, sums) })
}

// RecordAgain records those variants of a visible block that another process has made
// void since they were recorded.
func (b *Book) RecordAgain(key kv.Key, variants ...[]uint64) error {
	return b.retrying(func() error {
		if err := b.catchUp(time.Now()); err != nil {
			return err
		}
		for _, sums := range variants {
			if err := b.record(key, sums); err != nil {
				return err
			}
		}
		return nil
	})
}

func (b *Book) record(key kv.Key, sums []uint64) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	if _, err := b.writable(); err != nil { // before it is looked for in what nobody else reads
		return err
	}
	found, err := b.look(key)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(found.Sums, func(known []uint64) bool { return slices.Equal(known, sums) }) {
		return nil
	}
	return b.write(&record{stamp: rand.Uint64(), key: key, shape: b.shape, sums: sums})
}

// Forget makes void what is recorded of a block of the store's namespace and size, as
// far as this process knows, and returns those variants: the block has been removed.
// Records of other namespaces and sizes stay.
func (b *Book) Forget(key kv.Key) (void [][]uint64, err error) {
	err = b.retrying(func() error {
		void, err = b.forget(key)
		return err
	})
	return void, err
}

func (b *Book) forget(key kv.Key) (void [][]uint64, err error) {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.RLock()
	var stamps []uint64
	for _, e := range b.index.entries(key) {
		shape := b.index.shapes[e.shape]
		if !b.ours(shape) {
			continue
		}
		r, err := b.logs[e.log].at(e.at, shape.Shards)
		if errors.Is(err, errDamaged) {
			continue // it says nothing any more
		}
		if err != nil {
			b.mu.RUnlock()
			return nil, err
		}
		stamps = append(stamps, r.stamp)
		if shape.Shards == b.shape.Shards {
			void = append(void, r.sums)
		}
	}
	b.mu.RUnlock()
	for _, stamp := range stamps {
		if err := b.write(&record{forget: true, stamp: stamp, key: key, shape: Shape{Namespace: b.shape.Namespace}}); err != nil {
			return void, err
		}
	}
	return void, nil
}

// writable is the own log, if it has not been removed.
func (b *Book) writable() (*log, error) {
	b.mu.RLock()
	own, err := b.ownLog()
	b.mu.RUnlock()
	if err == nil && own.removed() {
		err = fmt.Errorf("write %s: %w", own.f.Name(), fs.ErrNotExist)
	}
	return own, err
}

// write appends to the own log. writing is held.
func (b *Book) write(r *record) error {
	raw := r.append(make([]byte, 0, r.bytes()))
	b.mu.RLock()
	own, err := b.ownLog()
	b.mu.RUnlock()
	if err != nil {
		return err
	}
	at := own.end
	if err := own.append(raw); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.learn(b.own, at, r)
	return nil
}
