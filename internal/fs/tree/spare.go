package tree

import (
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/quota"
)

// Beyond the descriptors of open files and directories, which whoever opens them bounds, a
// tree holds some that it can do without: those for direct I/O, those of files that are
// open in another access mode only, and those of files without a name. They are bounded by
// user. Where the bound is reached, I/O is buffered, a file is opened for each batch of
// requests, and an open of a file that was removed meanwhile fails with ESTALE.

// defaultSpare is the bound for all users together if Options does not say.
const defaultSpare = 4096

func newSpare(descriptors int) *quota.Quota {
	if descriptors == 0 {
		descriptors = defaultSpare
	}
	return quota.New(int64(descriptors))
}

// keepIdleLocked reports whether f may stay open without a user.
func (of *openFile) keepIdleLocked(f *File) bool {
	if of.tree.sums != nil && f.access != unix.O_RDONLY {
		return false // nobody could tell this writer from others
	}
	f.kept = f.kept || of.tree.spare.Take(f.uid, 1)
	return f.kept
}

// dropLocked ends one use of f and unlocks.
func (of *openFile) dropLocked(f *File) {
	f.refs--
	of.users--
	of.checkLocked()
	idle := f.refs == 0 && of.handles > 0 && !of.keepIdleLocked(f)
	if idle {
		of.files[f.access] = nil
	}
	of.endLocked()
	if idle {
		f.close()
	}
}
