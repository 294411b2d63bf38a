package blockfiles

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// SpareDir, below a root, has the blocks whose own place is of no use: the file system cannot read the inode
// there, so it neither removes the name nor renames another file over it. A block is looked for
// here only while that is so.
const SpareDir = kv3fs.SpareDir

func (r *root) spare(p Place) string { return filepath.Join(r.dir, SpareDir, p.Name) }

// lost reports whether an error of a path says that the file system cannot read its inode.
func lost(err error) bool { return kv.IsUnreadable(err) || errors.Is(err, syscall.ESTALE) }

// stale returns an error if not just a file of the root is stale, but the root itself, as a mount is whose server has exported its
// file system anew: then nothing answers there until it is mounted again.
func (r *root) stale() error {
	if _, err := status(unix.AT_FDCWD, r.dir); errors.Is(err, syscall.ESTALE) {
		return fmt.Errorf("all of %s is stale: mount its file system again: %w", r.dir, unix.ENOTCONN)
	}
	return nil
}

// find returns where the file of a block is, and its attributes. What cannot be read does not
// exist.
func find(r *root, place Place) (path string, st unix.Statx_t, err error) {
	path = r.in(place)
	if st, err = status(unix.AT_FDCWD, path); !lost(err) {
		return path, st, err
	}
	if errors.Is(err, syscall.ESTALE) {
		if away := r.stale(); away != nil {
			return path, st, away
		}
	}
	path = r.spare(place)
	if st, err = status(unix.AT_FDCWD, path); lost(err) {
		err = os.ErrNotExist
	}
	return path, st, err
}

// settleSpares moves blocks to their own places where these can be used again: the file
// system was repaired.
func (s *Store) settleSpares(r *root) {
	names, _ := readNames(filepath.Join(r.dir, SpareDir)) // most often there is none
	for _, name := range names {
		key, ok := s.o.Format.Key(name)
		if !ok {
			continue
		}
		places, _ := s.placesOf(key)
		i := slices.IndexFunc(places, func(p Place) bool { return p.Name == name })
		if i < 0 {
			continue
		}
		path := r.in(places[i])
		if _, err := status(unix.AT_FDCWD, path); lost(err) {
			continue
		}
		if os.MkdirAll(filepath.Dir(path), dirMode) != nil {
			continue
		}
		if err := unix.Renameat2(unix.AT_FDCWD, r.spare(places[i]), unix.AT_FDCWD, path, unix.RENAME_NOREPLACE); errors.Is(err, os.ErrExist) {
			_ = os.Remove(r.spare(places[i])) // it was saved again
		}
	}
}
