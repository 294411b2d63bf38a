package segment

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// While the disk cannot be written to, nothing is evicted: the blocks on it may still be
// readable. Nor is anything evicted before something was written to the segment that was
// begun last. A segment that a write has failed in is set aside, and the next one is tried.
// The first to fail after that has no blocks, so it can be begun anew again and again, and
// saves themselves find out when the disk is back. Where all segments have blocks, the
// keeper writes a header again that is there already. Saves that find no segment to try
// fail at once.

const (
	// troublePause is how long the keeper waits before it begins another segment when two
	// in a row could not be written to. It doubles with each further failure, up to
	// maxTroublePause, which is how long saves may fail after the disk is back.
	troublePause    = 50 * time.Millisecond
	maxTroublePause = time.Second
)

// trouble is what is known of writes that fail. The store's lock guards it.
type trouble struct {
	failures int   // since the last write that succeeded: a segment each, or an attempt of the keeper
	head     bool  // a head could not be written, which data that can be does not disprove
	last     error // the last one
}

// lasts reports whether more than one segment has failed.
func (t *trouble) lasts() bool { return t.failures > 1 }

// error is what saves get while it lasts.
func (t *trouble) error() error {
	return fmt.Errorf("%w: no segment can be written to; the last error was: %w", kv.ErrFull, t.last)
}

// failLocked counts a failure and wakes the saves that would wait for a segment in vain. The
// store's lock is held.
func (s *Store) failLocked(err error) {
	s.trouble.failures++
	s.trouble.last = err
	s.doubt.Store(true)
	if s.trouble.lasts() {
		s.wakeSavesLocked()
	}
	poke(s.keeperWanted)
}

// wakeSavesLocked has the saves that wait for a slot look again. The store's lock is held.
func (s *Store) wakeSavesLocked() {
	close(s.isReady)
	s.isReady = make(chan struct{})
}

// blame sets a segment aside after a failed write, unless the write was only cancelled.
func (s *Store) blame(seg *segment, head bool, err error) {
	for _, ours := range []error{context.Canceled, context.DeadlineExceeded, kv.ErrClosed} {
		if errors.Is(err, ours) {
			return
		}
	}
	s.mu.Lock()
	seg.failed = true
	s.trouble.head = s.trouble.head || head
	s.trouble.last = err
	was := s.active == seg
	if was {
		s.fillLocked(seg)
	}
	if was || s.trouble.failures == 0 {
		s.failLocked(err)
	}
	s.mu.Unlock()
	if was {
		s.log.Warn("segment store: a segment is set aside", "file", seg.file.Name(), "err", err)
	}
}

// worked notes that something was written: a block's head, or its data.
func (s *Store) worked(head bool) {
	if !s.doubt.Load() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.untested = nil
	if head || !s.trouble.head {
		s.trouble = trouble{}
		s.doubt.Store(false)
	}
	poke(s.keeperWanted)
}

// keepsAllLocked reports whether no block may be evicted now. The store's lock is held.
func (s *Store) keepsAllLocked() bool {
	seg := s.untested
	return s.trouble.failures > 0 || seg != nil && (seg == s.active || seg.writing > 0)
}

// pause waits if segments could not be written to twice in a row or more.
func (s *Store) pause() {
	s.mu.RLock()
	failures := s.trouble.failures
	s.mu.RUnlock()
	if failures > 1 {
		s.waitFor(nil, min(troublePause<<min(failures-2, 10), maxTroublePause))
	}
}

// inTrouble reports whether nothing was written since a write failed.
func (s *Store) inTrouble() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.trouble.failures > 0
}

// emptyLocked reports whether no block is found in a segment. The store's lock is held.
func (s *Store) emptyLocked(seg *segment) bool {
	for at := seg.first; at < seg.first+uint32(s.geo.slots); at++ {
		if s.table.has(at) {
			return false
		}
	}
	return true
}

// waitsForSave waits until something was written to the segment that was begun last, if
// nothing else is to be done before. It reports whether it has waited.
func (s *Store) waitsForSave() bool {
	s.mu.RLock()
	waits := s.trouble.failures == 0 && s.keepsAllLocked()
	s.mu.RUnlock()
	if waits {
		s.waitFor(s.keeperWanted, 0)
	}
	return waits
}

// proveWrites finds out, after a failure, whether the disk can be written to: it writes a
// header again that is there already. It does not disprove failures of larger writes, so a
// segment that failed is begun anew before any other is evicted.
func (s *Store) proveWrites() {
	s.mu.Lock()
	seg := s.provingLocked()
	if seg == nil {
		s.mu.Unlock()
		return
	}
	seg.pins.Add(1)
	header := s.headerOf(seg, seg.generation)
	s.mu.Unlock()
	defer s.unpin(seg)
	raw := header.encode(headerMagic)
	done := make(chan error, 1)
	s.engine.Do(s.group.Closing(), []transfer.Op{s.pinned(seg, transfer.Op{
		File: seg.data, Buf: raw, Write: true, Ahead: true,
		Done: func(n int, err error) { done <- wholly(n, len(raw), err) },
	})})
	if err := <-done; err != nil {
		s.mu.Lock()
		s.failLocked(err)
		s.mu.Unlock()
		return
	}
	s.worked(true)
}

// provingLocked returns a full segment of ours whose header is on the disk, if writes fail.
// The store's lock is held.
func (s *Store) provingLocked() *segment {
	if s.trouble.failures == 0 {
		return nil
	}
	for _, seg := range slices.Backward(s.full) {
		if !seg.foreign && !seg.unbegun && !seg.blank {
			return seg
		}
	}
	return nil
}

// pinned returns a write that pins its segment until the storage has finished with it, also
// when that is late: no other block gets the slot before.
func (s *Store) pinned(seg *segment, op transfer.Op) transfer.Op {
	seg.pins.Add(1)
	done, late := op.Done, op.Late
	op.Done = func(n int, err error) {
		done(n, err)
		if !errors.Is(err, kv.ErrAbandoned) {
			s.unpin(seg)
		}
	}
	op.Late = func() {
		if late != nil {
			late()
		}
		s.unpin(seg)
	}
	return op
}
