package fuseserver

import (
	"encoding/json"
	"errors"
	"os"
	"strconv"
	"strings"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// lockName is the extended attribute of a directory's lock. The tree keeps it in memory, so it is
// lost when the daemon exits, and other hosts do not see it. Beside it, clients have ACLs and
// attributes of their own in the user namespace; the rest is the data directory's.
const lockName = "hf3fs.lock"

// lockValue returns the value of the lock attribute, which names the client that holds
// the lock: in 3FS a FUSE daemon, here always this one.
func lockValue(cluster string) []byte {
	host, _ := os.Hostname()
	id, err := os.ReadFile("/proc/sys/kernel/random/uuid")
	if err != nil {
		id = []byte(cluster + "-" + strconv.Itoa(os.Getpid()))
	}
	var v struct {
		Client struct {
			UUID     string `json:"uuid"`
			Hostname string `json:"hostname"`
		} `json:"client"`
	}
	v.Client.UUID, v.Client.Hostname = strings.TrimSpace(string(id)), host
	value, _ := json.Marshal(v) // two strings: cannot fail
	return value
}

// setLock executes the action that a client wrote to the attribute.
func (fs *fileSystem) setLock(uid uint32, node uint64, action string) error {
	switch action {
	case "try_lock", "preempt_lock":
		return fs.tree.Lock(node, uid)
	case "unlock":
		return fs.tree.Unlock(node)
	case "clear":
		if err := fs.tree.Unlock(node); !errors.Is(err, unix.ENOLCK) {
			return err
		}
		return nil
	}
	return unix.EINVAL
}

// fileType returns the S_IFMT bits of a node, 0 if it does not exist any more.
func (fs *fileSystem) fileType(node uint64) uint32 {
	e, err := fs.tree.Getattr(node, 0)
	if err != nil {
		return 0
	}
	return e.Attr.Mode & unix.S_IFMT
}

func (fs *fileSystem) GetXAttr(_ <-chan struct{}, h *fuse.InHeader, name string, dest []byte) (uint32, fuse.Status) {
	switch {
	case tree.IsACL(name): // the kernel asks at every check of rights
		return fs.getACL(h.NodeId, name, dest)
	case wire.IsVirtual(h.NodeId):
		return 0, fuse.ENOTSUP
	case name == wire.DaemonXattr && h.NodeId == tree.RootID && fs.daemonValue != nil:
		if h.Pid == 0 {
			return fit(fs.unseenValue, dest)
		}
		return fit(fs.daemonValue, dest)
	case tree.IsUserXattr(name):
		return fs.getUserXattr(h.NodeId, name, dest)
	case name != lockName || !fs.tree.Locked(h.NodeId):
		return 0, fuse.ENODATA
	}
	return fit(fs.lockValue, dest)
}

func (fs *fileSystem) ListXAttr(_ <-chan struct{}, h *fuse.InHeader, dest []byte) (uint32, fuse.Status) {
	if wire.IsVirtual(h.NodeId) {
		return 0, fuse.ENOTSUP
	}
	names, err := fs.tree.UserXattrs(h.NodeId)
	if err != nil {
		return 0, fs.statusOf(err)
	}
	names = append(names, fs.tree.ACLs(h.NodeId)...)
	if fs.tree.Locked(h.NodeId) {
		names = append(names, lockName)
	}
	var list []byte
	for _, name := range names {
		list = append(append(list, name...), 0)
	}
	return fit(list, dest)
}

func (fs *fileSystem) getACL(node uint64, name string, dest []byte) (uint32, fuse.Status) {
	if wire.IsVirtual(node) {
		return 0, fuse.ENODATA
	}
	return fs.sized(dest)(fs.tree.ACL(node, name, dest))
}

func (fs *fileSystem) getUserXattr(node uint64, name string, dest []byte) (uint32, fuse.Status) {
	return fs.sized(dest)(fs.tree.UserXattr(node, name, dest))
}

// sized returns a function that answers with a size and an error of the tree, as fit does
// when the size was asked for.
func (fs *fileSystem) sized(dest []byte) func(size int, err error) (uint32, fuse.Status) {
	return func(size int, err error) (uint32, fuse.Status) {
		if err == nil && len(dest) == 0 {
			err = unix.ERANGE
		}
		return uint32(max(size, 0)), fs.statusOf(err)
	}
}

// setUserXattr sets or removes an attribute of the user namespace. The kernel has checked that
// the client may.
func (fs *fileSystem) setUserXattr(h *fuse.InHeader, name string, value []byte, flags int) fuse.Status {
	switch {
	case wire.IsVirtual(h.NodeId):
		return fuse.ENOTSUP
	case fs.readonly(h):
		return fuse.EROFS
	}
	err := fs.tree.SetUserXattr(h.NodeId, name, value, flags, callerOf(h))
	if value == nil && fs.done(h, err, unix.ENODATA) {
		return fuse.OK
	}
	if flags&unix.XATTR_CREATE != 0 && fs.done(h, err, unix.EEXIST) && fs.hasXattr(h.NodeId, name, value) {
		return fuse.OK
	}
	return fs.statusOf(err)
}

// hasXattr reports whether an attribute has a value.
func (fs *fileSystem) hasXattr(node uint64, name string, value []byte) bool {
	has := make([]byte, len(value)+1)
	n, err := fs.tree.UserXattr(node, name, has)
	return err == nil && string(has[:n]) == string(value)
}

// setACL sets or removes an ACL. The kernel has checked that the client may, and the data
// directory checks it again.
func (fs *fileSystem) setACL(h *fuse.InHeader, name string, value []byte) fuse.Status {
	switch {
	case wire.IsVirtual(h.NodeId):
		return fuse.ENOTSUP
	case fs.readonly(h):
		return fuse.EROFS
	}
	return fs.statusOf(fs.tree.SetACL(h.NodeId, name, value, callerOf(h)))
}

// fit copies value into dest. If dest is too short, or empty to query the size, it
// returns the size and ERANGE.
func fit(value, dest []byte) (uint32, fuse.Status) {
	if len(dest) < len(value) {
		return uint32(len(value)), fuse.ERANGE
	}
	return uint32(copy(dest, value)), fuse.OK
}

func (fs *fileSystem) SetXAttr(_ <-chan struct{}, in *fuse.SetXAttrIn, name string, value []byte) fuse.Status {
	switch {
	case tree.IsACL(name):
		return fs.setACL(&in.InHeader, name, value)
	case tree.IsUserXattr(name):
		if value == nil {
			value = []byte{} // nil removes
		}
		return fs.setUserXattr(&in.InHeader, name, value, int(in.Flags))
	case wire.IsVirtual(in.NodeId) || name != lockName || fs.fileType(in.NodeId) != unix.S_IFDIR:
		return fuse.ENOTSUP
	case fs.readonly(&in.InHeader):
		return fuse.EROFS
	}
	err := fs.setLock(in.Uid, in.NodeId, string(value))
	if fs.done(&in.InHeader, err, unix.ENOLCK) {
		return fuse.OK // it was unlocked already
	}
	return fs.statusOf(err)
}

func (fs *fileSystem) RemoveXAttr(_ <-chan struct{}, h *fuse.InHeader, name string) fuse.Status {
	switch {
	case tree.IsACL(name):
		return fs.setACL(h, name, nil)
	case tree.IsUserXattr(name):
		return fs.setUserXattr(h, name, nil, 0)
	case wire.IsVirtual(h.NodeId) || name != lockName:
		return fuse.EPERM
	case fs.readonly(h):
		return fuse.EROFS
	}
	switch fs.fileType(h.NodeId) {
	case unix.S_IFDIR:
	case unix.S_IFLNK:
		return fuse.EPERM
	default:
		return fuse.ENOTDIR
	}
	return fs.statusOf(fs.setLock(h.Uid, h.NodeId, "clear"))
}
