package blockfiles

import (
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Paired is a Format whose blocks have side files, and that knows what a program leaves in the
// directories of blocks when it dies.
type Paired interface {
	Format

	// Other returns the name of the other file of a pair, and false for what is none of a
	// pair in this directory, which is relative to the root. Both are of any deployment of
	// the Format.
	Other(dir, name string) (other string, ok bool)

	// Temporary reports whether another program gives a file in this directory this name
	// while it writes it.
	Temporary(dir, name string) bool
}

// sweepPairs removes from the directories of blocks, from dir on, what is older than SweepAge: a
// file whose other one is missing, which is no block, and temporary files of another program's.
func (s *Store) sweepPairs(r *root, paired Paired, dir string, now time.Time) {
	names, err := readNames(filepath.Join(r.dir, dir))
	if err != nil || s.group.Err() != nil {
		return
	}
	for _, name := range names {
		path := filepath.Join(r.dir, dir, name)
		other, pair := paired.Other(dir, name)
		switch {
		case pair && exists(filepath.Join(r.dir, dir, other)):
		case pair, paired.Temporary(dir, name):
			s.removeOld(path, now)
		case paired.HasBlocks(filepath.Join(dir, name)):
			s.sweepPairs(r, paired, filepath.Join(dir, name), now)
		}
	}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return !gone(err)
}

// removeOld removes a regular file that a dead writer has left.
func (s *Store) removeOld(path string, now time.Time) {
	st, err := status(unix.AT_FDCWD, path)
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && s.leftovers.isLeft(path, st, now.Sub(changed(st)), s.o.SweepAge) {
		_ = os.Remove(path)
	}
}
