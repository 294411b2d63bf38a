package ucmfiles

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// UCM gives a block its name when the block's last shard is written, though an earlier
// shard may still be missing. Such a block has no checksums, so what can be seen decides:
// a hole where a shard is to be, or a temporary file of the same block, which a late shard
// makes again. A shard that overlaps others' disk blocks leaves no hole and is not seen.

// isFinished reports whether nothing shows that a file that UCM wrote lacks a part.
func (s *Store) isFinished(r *root, key kv.Key, f *os.File) bool {
	if _, err := os.Lstat(s.ucmTemporary(r, key)); err == nil {
		return false
	}
	// A file system that knows no holes says that the only one is at the end, or nothing.
	hole, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_HOLE)
	if err != nil {
		return true
	}
	return hole >= s.o.Layout.BlockBytes
}

// isFinishedAt is isFinished for the file of a block at this path.
func (s *Store) isFinishedAt(r *root, key kv.Key, path string) (bool, error) {
	f, err := s.openFile(path)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	return s.isFinished(r, key, f), nil
}

// ucmTemporary returns where UCM has a block while it writes it.
func (s *Store) ucmTemporary(r *root, key kv.Key) string {
	if s.o.UCMTempDir != "" {
		return filepath.Join(r.dir, s.o.UCMTempDir, key.String())
	}
	return s.path(r, key) + ".tmp"
}
