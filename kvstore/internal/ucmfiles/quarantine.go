package ucmfiles

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const (
	quarantineDir = ".kv3fs-quarantine"

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
// and a block that UCM writes there, without a record, can be read.
func (s *Store) quarantine(h *handle) {
	h.quarantined.Do(func() {
		s.counters.CorruptBlocks.Add(1)
		s.forgetHandle(h.key)
		// Another process may have put a good one in its place.
		if !s.isInPlace(h) {
			return
		}
		dir := filepath.Join(h.root.dir, quarantineDir)
		name := fmt.Sprintf("%s.%d", h.key, time.Now().UnixNano())
		_ = makeDirs(h.root.dir, quarantineDir) // it may have been removed
		if os.Rename(h.path, filepath.Join(dir, name)) != nil && os.Remove(h.path) != nil {
			return
		}
		s.counters.QuarantinedBlocks.Add(1)
		_, _ = h.root.sums.Forget(h.key) // otherwise the next block there is found damaged, too
		limitQuarantine(dir)
	})
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
