package fuseserver

import (
	"syscall"
	"time"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// ControlDir answers requests about 3fs-virt and everything below it. All methods may
// be called concurrently.
type ControlDir interface {
	// RelPath turns an absolute path on the mount, from a client, into one relative
	// to its root.
	RelPath(abs string) (rel string, err syscall.Errno)
	Lookup(c cred.Caller, dir uint64, name string) (controldir.Attr, syscall.Errno)
	Getattr(c cred.Caller, ino uint64) (controldir.Attr, syscall.Errno)
	Readlink(c cred.Caller, ino uint64) (string, syscall.Errno)
	// Symlink registers a ring or an iov, or sets a setting.
	Symlink(c cred.Caller, dir uint64, name, target string) (a controldir.Attr, err syscall.Errno)
	// RemoveTarget returns the path, relative to the root of the mount, that a link in
	// rm-rf orders to be removed.
	RemoveTarget(c cred.Caller, target string) (rel string, err syscall.Errno)
	Unlink(c cred.Caller, dir uint64, name string) syscall.Errno
	List(c cred.Caller, dir uint64) ([]controldir.Entry, syscall.Errno)
	// OpenDir returns a handle. ReleaseDir is called exactly once with it and the same
	// directory, at the latest when the mount ends.
	OpenDir(c cred.Caller, dir uint64) (handle uint64, err syscall.Errno)
	ReleaseDir(dir, handle uint64)
	// DirsStayOpen is called before all else if the mount is a predecessor's. These are the handles that are open;
	// ReleaseDir will be called with them. Others of the predecessor are not open any more.
	DirsStayOpen(handles []uint64)
}

// Settings are those that can differ between users. All methods may be called
// concurrently. They are called for every request and must be cheap.
type Settings interface {
	Readonly(uid uint32) bool
	AttrTimeout(uid uint32) time.Duration
	EntryTimeout(uid uint32) time.Duration
	NegativeTimeout(uid uint32) time.Duration
	SymlinkTimeout(uid uint32) time.Duration
}
