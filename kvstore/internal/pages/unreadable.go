package pages

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// A page that cannot be read may be lost, or the file's servers are away and every page answers so. Its key is of
// value to all hosts, so a Load does not delete it. Lookup takes the block for missing for kv.UnreadableFor, and
// its next Save, which brings the bytes anew, decides: see replace.

// unreadable are the blocks of which something could not be read.
type unreadable struct {
	mu     sync.Mutex
	blocks map[kv.Key]unread
}

// unread is what could not be read, and until when that counts.
type unread struct {
	page          int64
	offset, bytes int64 // in the file
	until         time.Time
}

// mostUnreadable bounds the memory. Beyond it, blocks are not remembered.
const mostUnreadable = 1 << 16

func (u *unreadable) add(key kv.Key, what unread) {
	u.mu.Lock()
	defer u.mu.Unlock()
	now := time.Now()
	if len(u.blocks) == mostUnreadable {
		maps.DeleteFunc(u.blocks, func(_ kv.Key, b unread) bool { return now.After(b.until) })
	}
	if u.blocks == nil {
		u.blocks = map[kv.Key]unread{}
	}
	if len(u.blocks) < mostUnreadable {
		what.until = now.Add(kv.UnreadableFor)
		u.blocks[key] = what
	}
}

func (u *unreadable) find(key kv.Key) (what unread, ok bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	what, ok = u.blocks[key]
	return what, ok && time.Now().Before(what.until)
}

func (u *unreadable) drop(key kv.Key) {
	u.mu.Lock()
	defer u.mu.Unlock()
	delete(u.blocks, key)
}

// noteUnread remembers a block if err says that something of its page cannot be read.
func (l *loading) noteUnread(w *wanted, inPage, bytes int64, err error) {
	if kv.IsUnreadable(err) {
		l.store.unreadable.add(w.key, unread{page: w.page, offset: l.store.label.at(w.page) + inPage, bytes: bytes})
	}
}

func (l *loading) noteUnreadShard(w *wanted, index int, err error) {
	bytes := l.store.o.Layout.ShardBytes
	l.noteUnread(w, int64(index)*bytes, bytes, err)
}

func (l *loading) noteUnreadRecord(w *wanted, err error) {
	l.noteUnread(w, headAt(l.store.o.Layout), blockhead.Size, err)
}

// exists returns which blocks are there, without those that could not be read a short time ago.
func (s *Store) exists(ctx context.Context, keys []kv.Key) ([]bool, error) {
	there, err := s.service.exists(ctx, keys)
	if err != nil {
		return nil, err
	}
	for i := range there {
		if there[i] {
			_, bad := s.unreadable.find(keys[i])
			there[i] = !bad
		}
	}
	return there, nil
}

// replace deletes a block that could not be read and that is to be saved again, into another page, if what could
// not be read still cannot be, while the file can be read elsewhere. It returns errPresent if the block is there
// after all, and an error if nothing can be said.
func (s *Store) replace(ctx context.Context, key kv.Key, what unread) error {
	if there, err := s.isAt(ctx, key, what.page); !there {
		return err
	}
	where := fmt.Sprintf("page %d of %s", what.page, s.o.File)
	var found error
	// An outage may end between two reads, so it is read before and after the label.
	for _, again := range []bool{false, true} {
		found = s.readable(ctx, what.offset, what.bytes)
		switch {
		case found == nil:
			s.unreadable.drop(key)
			return errPresent
		case !kv.IsUnreadable(found):
			return fmt.Errorf("kvstore: block %s in %s: %w", key, where, found)
		case again:
			continue
		}
		if err := s.labelReadable(ctx); err != nil {
			return fmt.Errorf("kvstore: block %s in %s cannot be read, nor can anything else of the file: %w", key, where, err)
		}
	}
	// A disk may take long to find that it cannot read, and another client may have saved the block meanwhile.
	if there, err := s.isAt(ctx, key, what.page); !there {
		return err
	}
	s.counters.CorruptBlocks.Add(1)
	if err := s.service.remove(ctx, once, []kv.Key{key}); err != nil {
		return fmt.Errorf("kvstore: block %s in %s cannot be read (%w), and could not be deleted: %w", key, where, found, err)
	}
	s.counters.QuarantinedBlocks.Add(1)
	s.unreadable.drop(key)
	return nil
}

// isAt reports whether a block is in a page. If not, the error is what replace returns.
func (s *Store) isAt(ctx context.Context, key kv.Key, page int64) (bool, error) {
	pages, err := s.service.locate(ctx, []kv.Key{key})
	switch {
	case err != nil || pages[0] == none:
		return false, err
	case pages[0] != page: // it was saved again
		s.unreadable.drop(key)
		return false, errPresent
	}
	return true, nil
}

// readable reads something of the file, and returns why it cannot. A read that hangs outlives the context.
func (s *Store) readable(ctx context.Context, offset, bytes int64) error {
	file, err := s.file.take(ctx)
	if err != nil {
		return err
	}
	outcome := make(chan error, 1)
	s.group.Go(func() {
		defer s.file.give(file)
		_, err := s.read(ctx, file.file, offset, bytes)
		s.file.dropIfGone(file, err)
		outcome <- err
	})
	select {
	case err := <-outcome:
		return err
	case <-ctx.Done():
		return endOf(ctx)
	}
}

// labelReadable is readable for the label, past the page cache: there it lies since Open, whatever has become of the disk. The file is opened by its name,
// where another one may be by now, on another disk: it says nothing of this one.
func (s *Store) labelReadable(ctx context.Context) error {
	return s.file.do(ctx, func() error {
		f, err := openUncached(s.o.File)
		if err != nil {
			return err
		}
		file, err := s.adopt(f)
		if err != nil {
			return err
		}
		raw, err := s.read(ctx, file, 0, labelBytes)
		if err == nil {
			err = s.label.same(raw)
		}
		return errors.Join(err, file.Close())
	})
}

func (s *Store) read(ctx context.Context, file transfer.File, offset, bytes int64) ([]byte, error) {
	done := make(chan error, 1)
	buf := make([]byte, bytes)
	s.engine.Do(ctx, []transfer.Op{{File: file, Offset: offset, Buf: buf, Done: func(n int, err error) {
		if err == nil && n < len(buf) {
			err = io.ErrUnexpectedEOF
		}
		done <- err
	}}})
	return buf, <-done
}
