package sums

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// compactBytes is how much a log must grow before compaction is considered.
const compactBytes = 8 << 20

// Grown reports whether the log has grown enough to be compacted, whichever processes have
// written it.
func (ls *Logs) Grown() bool {
	ls.writing.Lock()
	defer ls.writing.Unlock()
	ls.mu.RLock()
	defer ls.mu.RUnlock()
	return ls.logs != nil && ls.logs[ls.own].end-ls.settled > max(compactBytes, ls.settled)
}

// Compact rewrites this process's log without the blocks for which alive returns false. ours
// says that the record is of the namespace and the size that the logs were opened for; a log
// that was taken over may have others. alive must return true for blocks that are recorded and
// not yet visible, or their writers must record them again when they are. Records can be added
// meanwhile. While another call compacts, it does nothing.
func (ls *Logs) Compact(alive func(key kv.Key, ours bool) bool) error {
	if !ls.beginCompacting() {
		return nil
	}
	defer ls.endCompacting()
	ls.mu.RLock()
	old, err := ls.ownLog()
	ls.mu.RUnlock()
	if err != nil {
		return err
	}

	path := filepath.Join(ls.dir, old.name)
	f, err := os.OpenFile(path+".new", os.O_CREATE|os.O_TRUNC|os.O_RDWR, 0o644|Mark)
	if err != nil {
		return err
	}
	f.Close()
	next, err := openLog(path+".new", os.O_RDWR)
	if err != nil {
		return err
	}
	if err := ls.rewrite(old, next, path, alive); err != nil {
		next.f.Close()
		os.Remove(path + ".new")
		return fmt.Errorf("compact: %w", err)
	}
	return nil
}

// beginCompacting reports whether nobody else is compacting.
func (ls *Logs) beginCompacting() bool {
	ls.writing.Lock()
	defer ls.writing.Unlock()
	begins := !ls.compacting
	ls.compacting = true
	return begins
}

func (ls *Logs) endCompacting() {
	ls.writing.Lock()
	defer ls.writing.Unlock()
	ls.compacting = false
}

func (ls *Logs) rewrite(old, next *log, path string, alive func(kv.Key, bool) bool) error {
	if !next.lock() {
		return fmt.Errorf("%s.new is locked by another process", path)
	}
	next.name = old.name
	// Most of it is copied while others write.
	done, err := ls.copy(old, next, 0, alive)
	if err != nil {
		return err
	}
	if err := next.append((&record{edge: true}).append(nil)); err != nil {
		return err
	}
	ls.writing.Lock()
	defer ls.writing.Unlock()
	if _, err := ls.copy(old, next, done, func(kv.Key, bool) bool { return true }); err != nil {
		return err
	}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if now, err := ls.ownLog(); err != nil || now != old {
		return errors.Join(errors.New("the log was opened again meanwhile"), err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return err
	}
	ls.unreadSince = time.Time{}
	ls.index.drop(ls.own)
	old.f.Close()
	ls.logs[ls.own] = next
	next.end = 0
	return next.read(ls.learnOwn)
}

// dropAfter is how long something in this process's log must have been unreadable before a compaction drops it.
const dropAfter = 24 * time.Hour

// mayDrop returns an error if what cannot be read of the log, at an offset, may be readable again later. Only one
// goroutine compacts.
func (ls *Logs) mayDrop(at int64) error {
	if ls.unreadSince.IsZero() {
		ls.unreadSince = time.Now()
	}
	if time.Since(ls.unreadSince) >= dropAfter {
		return nil
	}
	return fmt.Errorf("%w at %d", errUnread, at)
}

// copy appends to a log the records of another, from an offset on, that are still
// needed. It returns where the last one ends.
func (ls *Logs) copy(from, to *log, offset int64, alive func(kv.Key, bool) bool) (end int64, err error) {
	reader := log{f: from.f, data: from.data, end: offset}
	defer func() {
		if err == nil && reader.gap.open {
			err = ls.mayDrop(reader.gap.at)
		}
	}()
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
		ls.mu.RLock()
		_, void := ls.index.forgotten[r.stamp]
		ls.mu.RUnlock()
		switch {
		case r.edge:
		case r.forget:
			// The void record is needed for one that is in another log or that was
			// copied.
			if _, done := left[r.stamp]; !done {
				pending = r.append(pending)
			}
		case void:
			left[r.stamp] = struct{}{}
		case alive(r.key, ls.ours(r.shape)):
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
