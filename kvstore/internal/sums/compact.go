package sums

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// compactBytes is how much a log grows at least before it is worth a look.
const compactBytes = 8 << 20

// Grown tells whether Compact is worth its while.
func (b *Book) Grown() bool {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.logs != nil && b.logs[b.own].end-b.settled > max(compactBytes, b.settled)
}

// Compact writes this process's log anew without the blocks that are gone, as alive
// says: it must know of those that are recorded and not yet visible. Records are
// added meanwhile.
func (b *Book) Compact(alive func(kv.Key) bool) error {
	b.mu.RLock()
	old, err := b.ownLog()
	b.mu.RUnlock()
	if err != nil {
		return err
	}

	path := filepath.Join(b.dir, old.name)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o644)
	if err != nil {
		return err
	}
	f.Close()
	next, err := openLog(path+".new", os.O_RDWR)
	if err != nil {
		return err
	}
	if err := b.rewrite(old, next, path, alive); err != nil {
		next.f.Close()
		os.Remove(path + ".new")
		return fmt.Errorf("compact: %w", err)
	}
	return nil
}

func (b *Book) rewrite(old, next *log, path string, alive func(kv.Key) bool) error {
	if !next.lock() {
		return fmt.Errorf("%s.new is locked by another process", path)
	}
	next.name = old.name
	// Most of it while others write.
	done, err := b.copy(old, next, 0, alive)
	if err != nil {
		return err
	}
	b.writing.Lock()
	defer b.writing.Unlock()
	if _, err := b.copy(old, next, done, func(kv.Key) bool { return true }); err != nil {
		return err
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if now, err := b.ownLog(); err != nil || now != old {
		return errors.Join(errors.New("the log was opened anew meanwhile"), err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	b.index.drop(b.own)
	old.f.Close()
	b.logs[b.own] = next
	next.end = 0
	err = next.read(func(at int64, r *record) { b.learn(b.own, at, r) })
	b.settled = next.end
	return err
}

// copy appends the records of from, beginning at an offset, that are still of use,
// and says where they end.
func (b *Book) copy(from, to *log, offset int64, alive func(kv.Key) bool) (end int64, err error) {
	reader := log{f: from.f, end: offset}
	left := map[uint64]struct{}{} // stamps of void records that are not copied
	var pending []byte
	var failed error
	flush := func() {
		if failed == nil {
			failed = to.append(pending)
		}
		pending = pending[:0]
	}
	err = reader.read(func(_ int64, r *record) {
		b.mu.RLock()
		_, void := b.index.forgotten[r.stamp]
		b.mu.RUnlock()
		switch {
		case r.forget:
			// It is needed for a record in another log, and for one that was copied.
			if _, done := left[r.stamp]; !done {
				pending = r.append(pending)
			}
		case void:
			left[r.stamp] = struct{}{}
		case alive(r.key):
			pending = r.append(pending)
		}
		if len(pending) >= windowBytes {
			flush()
		}
	})
	flush()
	if failed != nil {
		return 0, failed
	}
	return reader.end, err
}
