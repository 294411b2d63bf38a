package blockfiles

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/sums"
)

// Delete removes the files of blocks and makes their checksum records void.
//
// It removes what the store's namespace has a record of. A file without any record, of
// another program's, carries no namespace unless names tell it: Delete leaves it and
// returns an error if Lookup would find it. A process that has a block open may still load
// it for a minute or two.
func (s *Store) Delete(ctx context.Context, keys []kv.Key) error {
	var mu sync.Mutex
	var refused error
	_, err := s.scan(ctx, s.opens, keys, func(_ int, key kv.Key, _ time.Time) (bool, error) {
		if err := s.remove(key); err != nil { // the other keys are still deleted
			mu.Lock()
			defer mu.Unlock()
			refused = err
		}
		return false, nil
	})
	if err != nil {
		return err
	}
	return refused
}

// DeleteAlone is Delete for the files that have one block, and leaves packs.
func (s *Store) DeleteAlone(ctx context.Context, keys []kv.Key) error {
	_, err := s.scan(ctx, s.opens, keys, func(_ int, key kv.Key, _ time.Time) (bool, error) {
		return false, s.removeAlone(key)
	})
	return err
}

// remove removes a block from wherever it is.
func (s *Store) remove(key kv.Key) error {
	failed := s.removeAlone(key)
	if failed == nil {
		failed = s.removePacked(key)
	}
	s.closeHandles(s.handles.forgetRemoved(key))
	return failed
}

// removeAlone removes the files of a block at its places.
func (s *Store) removeAlone(key kv.Key) error {
	places, err := s.placesOf(key)
	if err != nil {
		return fmt.Errorf("kvstore: delete block %s: %w", key, err)
	}
	var failed error
	for _, r := range s.roots {
		for _, place := range places {
			if err := s.removeFrom(r, key, place); err != nil {
				failed = err
			}
		}
	}
	s.closeHandles(s.handles.forgetRemoved(key))
	return failed
}

// removeFrom removes a block from one place.
func (s *Store) removeFrom(r *root, key kv.Key, place Place) error {
	path, st, there, err := isThere(r, place)
	if err != nil || !there && path == r.in(place) {
		return err
	}
	// What cannot be read may be readable again once the file system is repaired.
	found, err := r.sums.Again(key, time.Now())
	switch {
	case err != nil:
		return err
	case found.Known:
		return s.removeRecorded(r, key, place, path, found)
	case there && s.o.NamesTell && !found.Foreign:
		return unlink(r, place, path)
	case there && s.acceptable(r, found, st.Mode):
		return fmt.Errorf("kvstore: delete block %s: %s has no checksum record and so no namespace; remove the file if nobody needs it", key, path)
	}
	return nil // Lookup does not find it
}

// removeRecorded removes a block that has these records. The file goes before the
// record: a process that is killed in between leaves a record without a block, which is
// harmless.
func (s *Store) removeRecorded(r *root, key kv.Key, place Place, path string, found sums.Finding) error {
	if slices.Contains(found.Others, s.o.Layout.BlockBytes) {
		// A namespace with blocks of the same size has recorded this key, too.
		if ours, err := s.matchesFile(place, path, found); err != nil || !ours {
			if err == nil {
				_, err = r.sums.Forget(key)
			}
			return err
		}
	}
	if err := unlink(r, place, path); err != nil {
		return err
	}
	void, err := r.sums.Forget(key)
	if err != nil {
		return err
	}
	// A Save that was under way may have put the block in its place, and have looked at
	// its record, before that became void.
	if _, _, there, err := isThere(r, place); !there || err != nil {
		return err
	}
	return r.sums.RecordAgain(key, void...)
}

// unlink removes the file of a block, and before that its side file.
func unlink(r *root, place Place, path string) error {
	for _, path := range []string{r.side(place), path} {
		if path == "" {
			continue
		}
		if err := unix.Unlink(path); err != nil && !gone(err) {
			return &os.PathError{Op: "unlink", Path: path, Err: err}
		}
	}
	return nil
}

// matchesFile reports whether the first shard of a file has a checksum that the store's
// namespace has recorded.
func (s *Store) matchesFile(place Place, path string, found sums.Finding) (bool, error) {
	f, err := s.openFile(path)
	if gone(err) || lost(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	shard := make([]byte, s.o.Layout.ShardBytes)
	switch _, err := f.ReadAt(shard, place.Offset); {
	case kv.IsUnreadable(err):
		return false, nil
	case err != nil && err != io.EOF:
		return false, err
	}
	return matches(0, blockhead.Sum(shard), found), nil
}
