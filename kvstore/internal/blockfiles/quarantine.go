package blockfiles

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const (
	quarantineDir = kv3fs.QuarantineDir

	// The latest damaged blocks are kept, so that an operator can find out what
	// happened.
	mostQuarantined      = 16
	mostQuarantinedBytes = 1 << 30
)

// damage returns the error for a block that is not what was saved.
func (h *handle) damage(what string) error {
	return &kv.CorruptError{Key: h.key, Where: h.path, What: what}
}

// quarantine counts a damaged block and moves it out of the way. A Save then writes it anew,
// and a block that another program writes there, without a record, can be read.
func (s *Store) quarantine(h *handle) {
	h.quarantined.Do(func() {
		s.counters.CorruptBlocks.Add(1)
		s.forgetHandle(h.key)
		// Another process may have put a good one in its place.
		if !s.isInPlace(h) {
			return
		}
		// The records go first: otherwise the next block there is found damaged, too, or a
		// good one that is saved meanwhile loses its record. A block without a record is a
		// miss, so a process that is killed in between does no harm.
		void, _ := h.root.sums.Forget(h.key)
		if s.isInPlace(h) && s.putAside(h) {
			s.counters.QuarantinedBlocks.Add(1)
			return
		}
		// The records of a good block may be among those that were made void.
		_ = h.root.sums.RecordAgain(h.key, void...)
	})
}

// disown makes void the records of a block that another program has replaced by one of its own,
// which is not damaged because it differs.
func (s *Store) disown(h *handle) error {
	s.forgetHandle(h.key)
	if !s.isInPlace(h) {
		return nil
	}
	void, err := h.root.sums.Forget(h.key)
	if err != nil || s.isInPlace(h) {
		return err
	}
	// A good block was saved meanwhile, and its records may be among those.
	return h.root.sums.RecordAgain(h.key, void...)
}

// putAside moves a damaged block to the quarantine, unless there is another one in its
// place by then.
func (s *Store) putAside(h *handle) bool {
	dir := filepath.Join(h.root.dir, quarantineDir)
	aside := filepath.Join(dir, fmt.Sprintf("%s.%d", h.key, time.Now().UnixNano()))
	_ = makeDirs(h.root.dir, quarantineDir) // it may have been removed
	if side := h.root.side(h.at); side != "" {
		_ = os.Remove(side) // a good block is saved with it again
	}
	if os.Rename(h.path, aside) != nil {
		return os.Remove(h.path) == nil
	}
	defer limitQuarantine(dir)
	if st, err := status(unix.AT_FDCWD, aside); err == nil && st.Ino != h.ino {
		// A good block came in between. If there is another one by now, both are good.
		return os.Rename(aside, h.path) != nil
	}
	return true
}

// limitQuarantine removes the oldest files of a quarantine that is too large.
func limitQuarantine(dir string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	var files []os.FileInfo
	for _, e := range entries {
		if info, err := e.Info(); err == nil {
			files = append(files, info)
		}
	}
	// Their names end in the time; a rename does not change that of the file.
	when := func(f os.FileInfo) string { return filepath.Ext(f.Name()) }
	slices.SortFunc(files, func(a, b os.FileInfo) int { return cmp.Compare(when(b), when(a)) })
	kept := int64(0)
	for i, f := range files {
		if kept += f.Size(); i >= mostQuarantined || kept > mostQuarantinedBytes {
			_ = os.RemoveAll(filepath.Join(dir, f.Name()))
		}
	}
}
