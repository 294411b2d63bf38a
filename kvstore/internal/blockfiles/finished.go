package blockfiles

import (
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A block of another program's may have its name though a part is missing: UCM gives it
// when the last shard is written, though an earlier one may still be missing. Such a block
// has no checksums, so what can be seen decides: its head, a hole where a part is to be, or
// a file that the Format knows, as UCM's temporary file, which a late shard makes again. A
// shard that overlaps others' disk blocks leaves no hole and is not seen.

// isFinished reports whether nothing shows that a file of another program's is not the
// block or lacks a part.
func (s *Store) isFinished(r *root, key kv.Key, place Place, f *os.File) bool {
	if path := s.o.Format.Unfinished(key); path != "" {
		if _, err := os.Lstat(filepath.Join(r.dir, path)); err == nil {
			return false
		}
	}
	// A side file that is empty or of something else is what a power cut leaves: then the
	// block is as doubtful.
	if r.lacksSide(place) || s.checkHead(key, place, f) != nil || s.checkSide(r, key, place) != nil {
		return false
	}
	// A file system that knows no holes says that the only one is at the end, or nothing.
	hole, err := unix.Seek(int(f.Fd()), 0, unix.SEEK_HOLE)
	if err != nil {
		return true
	}
	return hole >= place.Bytes
}

// isFinishedAt is isFinished for the file of a block at this path.
func (s *Store) isFinishedAt(r *root, key kv.Key, place Place, path string) (bool, error) {
	f, err := s.openFile(path)
	if gone(err) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	defer f.Close()
	return s.isFinished(r, key, place, f), nil
}
