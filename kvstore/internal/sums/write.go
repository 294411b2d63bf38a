package sums

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"slices"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Record says what the shards of a block are, before it becomes visible. Saying it
// again costs nothing.
func (b *Book) Record(key kv.Key, sums []uint64) error {
	return b.retrying(func() error { return b.record(key, sums) })
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

// Forget makes all that is recorded of a block void: it is out of the way.
func (b *Book) Forget(key kv.Key) error {
	return b.retrying(func() error { return b.forget(key) })
}

func (b *Book) forget(key kv.Key) error {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.RLock()
	var void []uint64
	for _, e := range b.index.entries(key) {
		r, err := b.logs[e.log].at(e.at, b.index.shapes[e.shape].Shards)
		if errors.Is(err, errDamaged) {
			continue // it says nothing any more
		}
		if err != nil {
			b.mu.RUnlock()
			return err
		}
		void = append(void, r.stamp)
	}
	b.mu.RUnlock()
	for _, stamp := range void {
		if err := b.write(&record{forget: true, stamp: stamp, key: key, shape: Shape{Namespace: b.shape.Namespace}}); err != nil {
			return err
		}
	}
	return nil
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
