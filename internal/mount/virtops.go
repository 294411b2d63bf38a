package mount

import (
	"os"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/cred"
	"github.com/kv3fs/kv3fs/internal/stage"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// movePrefix begins the target of a symbolic link that is an order to move.
const movePrefix = "mv:"

func virtAttr(out *fuse.Attr, a VirtualAttr) {
	*out = fuse.Attr{
		Ino: a.Ino, Size: a.Size, Mode: a.Mode, Nlink: 1,
		Atime: wire.VirtualTime, Mtime: wire.VirtualTime, Ctime: wire.VirtualTime,
		Owner: fuse.Owner{Uid: a.UID, Gid: a.GID},
	}
}

func virtEntry(out *fuse.EntryOut, a VirtualAttr, keep time.Duration) {
	out.NodeId = a.Ino
	out.SetEntryTimeout(keep)
	out.SetAttrTimeout(keep)
	virtAttr(&out.Attr, a)
}

func (fs *fileSystem) virtLookup(h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	var a VirtualAttr
	var errno unix.Errno
	if h.NodeId == stage.RootID {
		a, errno = fs.virt.Getattr(callerOf(h), wire.InoVirt)
	} else {
		a, errno = fs.virt.Lookup(callerOf(h), h.NodeId, name)
	}
	if errno != 0 {
		return fuse.Status(errno) // plain errors: nothing here is cached as missing
	}
	virtEntry(out, a, virtualTimeout)
	return fuse.OK
}

func (fs *fileSystem) virtGetAttr(h *fuse.InHeader, out *fuse.AttrOut) fuse.Status {
	a, errno := fs.virt.Getattr(callerOf(h), h.NodeId)
	if errno != 0 {
		return fuse.Status(errno)
	}
	out.SetTimeout(virtualTimeout)
	virtAttr(&out.Attr, a)
	return fuse.OK
}

func virtSetAttr(ino uint64) fuse.Status {
	if virtualDirectory(ino) {
		return fuse.EPERM
	}
	return fuse.ENOENT
}

func virtualDirectory(ino uint64) bool {
	switch ino {
	case wire.InoVirt, wire.InoRmRf, wire.InoIovs, wire.InoGetConf, wire.InoSetConf:
		return true
	}
	return false
}

func (fs *fileSystem) virtSymlink(h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	a, transient, errno := fs.virt.Symlink(callerOf(h), h.NodeId, name, target)
	if errno != 0 {
		return fuse.Status(errno)
	}
	keep := fs.settings.SymlinkTimeout(h.Uid)
	if transient {
		keep = 0
		fs.notes.entry(h.NodeId, name)
	}
	virtEntry(out, a, keep)
	return fuse.OK
}

// transient answers a symlink request with an entry that is not there.
func (fs *fileSystem) transient(h *fuse.InHeader, target, name string, out *fuse.EntryOut) {
	virtEntry(out, VirtualAttr{Ino: wire.TransientIno(h.NodeId), Mode: unix.S_IFLNK, Size: uint64(len(target))}, 0)
	// The client holds the lock of the directory until it has the answer.
	fs.notes.entry(h.NodeId, name)
}

// below turns an absolute path a client gave into one below the mount.
func (fs *fileSystem) below(target string) (rel string, ok bool) {
	if !strings.HasPrefix(target, "/") {
		return "", false
	}
	clean := path.Clean(target)
	rel, ok = strings.CutPrefix(clean, strings.TrimSuffix(fs.point, "/")+"/")
	return rel, ok && !virtualPath(rel)
}

// virtualPath says that rel is 3fs-virt or below it.
func virtualPath(rel string) bool {
	first, _, _ := strings.Cut(rel, "/")
	return first == virtName
}

func (fs *fileSystem) symlinkIntoRmRf(h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	c := callerOf(h)
	if fs.readonly(h) {
		return fuse.EROFS
	}
	rel, ok := fs.below(target)
	if !ok || fs.settings.CheckRmRf() && !fs.saneLn(c) {
		return fuse.EINVAL
	}
	parent, last, known := fs.stage.Locate(rel)
	err := fs.stage.RemoveAll(c, rel)
	if known {
		fs.notes.entryNow(parent, last)
	}
	if err != nil {
		return statusOf(err)
	}
	fs.transient(h, target, name, out)
	return fuse.OK
}

// saneLn guards against "cd rm-rf; ln -s /mnt/dir x", where the user meant to
// make a link: ln(1) must be given absolute paths below the mount only.
func (fs *fileSystem) saneLn(c cred.Caller) bool {
	line, err := os.ReadFile("/proc/" + strconv.FormatUint(uint64(c.PID), 10) + "/cmdline")
	if err != nil {
		return true
	}
	args := strings.Split(strings.TrimSuffix(string(line), "\x00"), "\x00")
	switch args[0] {
	case "ln", "/usr/bin/ln", "/bin/ln":
	default:
		return true
	}
	for i, arg := range args[1:] {
		afterOption := i > 0 && strings.HasPrefix(args[i], "-")
		if strings.HasPrefix(arg, "-") || afterOption {
			continue
		}
		if arg = path.Clean(arg); !strings.HasPrefix(arg, fs.point+"/") {
			return false
		}
	}
	return true
}

func (fs *fileSystem) renameIntoRmRf(in *fuse.RenameIn, name, newName string) fuse.Status {
	err := fs.stage.RemoveEntry(callerOf(&in.InHeader), in.NodeId, name, true)
	// The client holds the locks of both directories. The kernel moves the
	// name it knows to where nothing is.
	fs.notes.entry(in.Newdir, newName)
	if err != nil {
		fs.notes.entry(in.NodeId, name)
	}
	return statusOf(err)
}

func (fs *fileSystem) symlinkToMove(h *fuse.InHeader, source, name string, out *fuse.EntryOut) fuse.Status {
	rel, ok := fs.below(source)
	if !ok {
		return fuse.EINVAL
	}
	parent, last, known := fs.stage.Locate(rel)
	if err := fs.stage.MoveInto(callerOf(h), rel, h.NodeId, name); err != nil {
		return statusOf(err)
	}
	switch {
	case known && parent == h.NodeId:
		fs.notes.entry(parent, last) // its lock is held until the answer
	case known:
		fs.notes.entryNow(parent, last)
	}
	fs.transient(h, source, name, out)
	return fuse.OK
}
