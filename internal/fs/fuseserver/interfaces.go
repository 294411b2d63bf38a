package fuseserver

import (
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// ControlDir is what is below 3fs-virt, and 3fs-virt itself. All methods may be
// called concurrently.
type ControlDir interface {
	// RelPath turns an absolute path on the mount, which a client gave, into one
	// below its root.
	RelPath(abs string) (rel string, err syscall.Errno)
	Lookup(c cred.Caller, dir uint64, name string) (controldir.Attr, syscall.Errno)
	Getattr(c cred.Caller, ino uint64) (controldir.Attr, syscall.Errno)
	Readlink(c cred.Caller, ino uint64) (string, syscall.Errno)
	// Symlink is how clients register and set.
	Symlink(c cred.Caller, dir uint64, name, target string) (a controldir.Attr, err syscall.Errno)
	// RemoveTarget is what a link in rm-rf orders to be removed, below the root of
	// the mount.
	RemoveTarget(c cred.Caller, target string) (rel string, err syscall.Errno)
	Unlink(c cred.Caller, dir uint64, name string) syscall.Errno
	List(c cred.Caller, dir uint64) ([]controldir.Entry, syscall.Errno)
	// OpenDir's handle is given to ReleaseDir exactly once, with the same
	// directory, at the latest when the mount ends.
	OpenDir(c cred.Caller, dir uint64) (handle uint64, err syscall.Errno)
	ReleaseDir(dir, handle uint64)
}

// Settings are what the mount does differently for different users. All methods
// may be called concurrently and are called for every request: they must be
// cheap.
type Settings interface {
	Readonly(uid uint32) bool
	AttrTimeout(uid uint32) time.Duration
	EntryTimeout(uid uint32) time.Duration
	NegativeTimeout(uid uint32) time.Duration
	SymlinkTimeout(uid uint32) time.Duration
}
