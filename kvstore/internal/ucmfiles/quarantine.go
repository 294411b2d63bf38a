package ucmfiles

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

const (
	quarantineDir = ".kv3fs-quarantine"

	// The latest of them are kept for who wants to know what has happened.
	mostQuarantined      = 16
	mostQuarantinedBytes = 1 << 30
)

// damage is the error about a block that is not what was dumped.
func (h *handle) damage(what string) error {
	return &kv.CorruptError{Key: h.key, Where: h.path, What: what}
}

// condemn counts a damaged block, and takes it out of the way: a Dump then writes it
// anew, and one that UCM writes, who records nothing, can be read again.
func (s *Store) condemn(h *handle) {
	h.condemned.Do(func() {
		s.counters.CorruptBlocks.Add(1)
		s.forgetHandle(h.key)
		// Another process may have put a good one in its place.
		if !s.isInPlace(h) {
			return
		}
		dir := filepath.Join(h.root.dir, quarantineDir)
		name := fmt.Sprintf("%s.%d", h.key, time.Now().UnixNano())
		_ = makeDirs(h.root.dir, quarantineDir) // if somebody has removed it
		if os.Rename(h.path, filepath.Join(dir, name)) != nil && os.Remove(h.path) != nil {
			return
		}
		s.counters.QuarantinedBlocks.Add(1)
		_, _ = h.root.sums.Forget(h.key) // else it is found damaged once more
		limitQuarantine(dir)
	})
}

// limitQuarantine removes the oldest.
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
	// By their names' ends: a rename changes no time.
	when := func(f os.FileInfo) string { return filepath.Ext(f.Name()) }
	slices.SortFunc(files, func(a, b os.FileInfo) int { return cmp.Compare(when(b), when(a)) })
	kept := int64(0)
	for i, f := range files {
		if kept += f.Size(); i >= mostQuarantined || kept > mostQuarantinedBytes {
			_ = os.RemoveAll(filepath.Join(dir, f.Name()))
		}
	}
}
