package fuseserver

import (
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// fileSystem answers FUSE requests. Node numbers with the top bit set belong to the
// control directory, all others to the tree.
type fileSystem struct {
	fuse.RawFileSystem // ENOSYS for what is not implemented, as 3FS does

	tree     *tree.Tree
	control  ControlDir
	settings Settings
	point    string
	opts     Options
	log      *slog.Logger

	server *fuse.Server // set before the first request

	// replyFD is a second descriptor of the connection, for replies that
	// go-fuse cannot make.
	replyFD     int
	replying    sync.Mutex // while replyFD is closed, or asked from outside of requests
	closed      bool       // replyFD is
	adopted     bool       // the mount is a predecessor's, whose requests come again
	late        *late
	passthrough *passthrough
	handles     *handles
	closing     *closing
	files       *quota.Quota // open files and directories
	lockValue   []byte       // the attribute of a locked directory
	daemonValue []byte       // the attribute wire.DaemonXattr; nil: none
	unseenValue []byte       // the same for callers that the daemon cannot see
	notifier    *notifier
	revocation  atomic.Pointer[revocation] // nil until the last clients are cut off
	pruner      *pruner
}

func newFileSystem(t *tree.Tree, control ControlDir, set Settings, opts Options, point string, replyFD int) *fileSystem {
	fs := &fileSystem{
		RawFileSystem: fuse.NewDefaultRawFileSystem(),
		tree:          t, control: control, settings: set, point: point, opts: opts, log: opts.Log,
		replyFD:     replyFD,
		passthrough: newPassthrough(opts.Log),
		handles:     newHandles(),
		closing:     newClosing(),
		files:       quota.New(int64(opts.Limits.Files)),
		lockValue:   lockValue(opts.Cluster),
	}
	fs.late = newLate(lateOptions{limit: opts.Deadline, health: opts.Health, answer: fs.answerEIO, onDisk: t.OnDataDevice,
		hold: t.Hold, drop: func(node uint64) { fs.Forget(node, 1) }, keepOut: t.KeepOut, letIn: t.LetIn})
	fs.notifier = newNotifier(func(parent uint64, name string) {
		fs.server.EntryNotify(parent, name)
	})
	fs.pruner = newPruner(t, opts.Limits.Nodes)
	fs.pruner.byName = fs.notifier.offer
	return fs
}

// end closes the handles that the kernel left open when the connection ended.
func (fs *fileSystem) end() {
	fs.tree.SetInvalidate(nil)
	fs.pruner.stop()
	fs.notifier.stop()
	fs.notifier.wait()
	for _, h := range fs.handles.drain() {
		fs.release(h)
	}
	fs.closing.wait()
	if fs.opts.State != nil {
		_ = Forsake(fs.opts.State) // the mount has ended
	}
	fs.late.stop()
	fs.closeReplies()
}

// closeReplies closes the descriptor of the device.
func (fs *fileSystem) closeReplies() {
	fs.replying.Lock()
	defer fs.replying.Unlock()
	fs.closed = true
	unix.Close(fs.replyFD)
}

// hasEnded reports whether the connection has ended.
func (fs *fileSystem) hasEnded() bool {
	fs.replying.Lock()
	defer fs.replying.Unlock()
	return fs.closed || hasEnded(fs.replyFD)
}

// invalidate makes the kernel forget the attributes it holds of a node, and with pages also
// the bytes. For these it waits until reads of them are answered; without, it takes no lock
// that a request may hold.
func (fs *fileSystem) invalidate(node uint64, pages bool) {
	const all, none = 0, -1 // offsets
	from := int64(none)
	if pages {
		from = all
	}
	fs.server.InodeNotify(node, from, 0)
}

func (fs *fileSystem) String() string { return subtype }

func callerOf(h *fuse.InHeader) cred.Caller {
	return cred.Caller{UID: h.Uid, GID: h.Gid, PID: h.Pid}
}

// statusOf translates an error into a FUSE status. Nothing else in this package does.
func (fs *fileSystem) statusOf(err error) fuse.Status {
	if err == nil {
		return fuse.OK
	}
	err = fs.opts.Health.Answer(err)
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return fuse.Status(errno)
	}
	return fuse.EIO
}

// nodeStatusOf is statusOf for a request that names a node and no entry. Without the file, the
// entry that led the kernel there is stale: it looks the name up again, and makes a new
// file if it is to.
func (fs *fileSystem) nodeStatusOf(err error) fuse.Status {
	if errors.Is(err, unix.ENOENT) {
		return fuse.Status(unix.ESTALE)
	}
	return fs.statusOf(err)
}

func (fs *fileSystem) readonly(h *fuse.InHeader) bool { return fs.settings.Readonly(h.Uid) }

// attr fills in the attributes that a client sees.
func (fs *fileSystem) attr(out *fuse.Attr, a *tree.Attr) {
	*out = fuse.Attr{
		Ino: a.Ino, Size: a.Size, Blocks: a.Blocks, Mode: a.Mode, Nlink: a.Nlink,
		Atime: uint64(a.Atime.Sec), Atimensec: a.Atime.Nsec,
		Mtime: uint64(a.Mtime.Sec), Mtimensec: a.Mtime.Nsec,
		Ctime: uint64(a.Ctime.Sec), Ctimensec: a.Ctime.Nsec,
		Owner:   fuse.Owner{Uid: a.UID, Gid: a.GID},
		Blksize: fs.opts.BlockBytes,
	}
}

func (fs *fileSystem) entry(out *fuse.EntryOut, e tree.Entry, uid uint32) {
	out.NodeId = e.ID
	out.SetEntryTimeout(fs.settings.EntryTimeout(uid))
	out.SetAttrTimeout(e.Keep)
	fs.attr(&out.Attr, &e.Attr)
	if e.New {
		fs.tree.Charge(e.ID, uid)
		fs.pruner.noted()
	}
}

func (fs *fileSystem) Lookup(_ <-chan struct{}, h *fuse.InHeader, name string, out *fuse.EntryOut) fuse.Status {
	if wire.IsVirtual(h.NodeId) || h.NodeId == tree.RootID && name == controldir.DirName {
		return fs.virtLookup(h, name, out)
	}
	if r := fs.revocation.Load(); r != nil && r.answer(name, out) {
		return fuse.OK
	}
	e, err := fs.tree.Lookup(h.NodeId, name, h.Uid, fs.settings.AttrTimeout(h.Uid))
	if errors.Is(err, unix.ENOENT) {
		if keep := fs.settings.NegativeTimeout(h.Uid); keep > 0 {
			out.SetEntryTimeout(keep) // node 0: no such entry, which the kernel may cache
			return fuse.OK
		}
	}
	if err != nil {
		return fs.statusOf(err)
	}
	fs.entry(out, e, h.Uid)
	return fuse.OK
}

func (fs *fileSystem) Forget(node, count uint64) {
	if wire.IsVirtual(node) || fs.revocation.Load() != nil { // which gives nodes more references
		return
	}
	// Closing a removed file frees its blocks, which takes time, and nobody reads further
	// requests while this runs.
	if owner, toClose := fs.tree.Forget(node, count); toClose {
		fs.closing.add(owner, func() { fs.tree.CloseForgotten(owner) })
	}
}

func (fs *fileSystem) GetAttr(_ <-chan struct{}, in *fuse.GetAttrIn, out *fuse.AttrOut) fuse.Status {
	if wire.IsVirtual(in.NodeId) {
		return fs.virtGetAttr(&in.InHeader, out)
	}
	e, err := fs.tree.Getattr(in.NodeId, fs.settings.AttrTimeout(in.Uid))
	if err != nil {
		return fs.nodeStatusOf(err)
	}
	out.SetTimeout(e.Keep)
	fs.attr(&out.Attr, &e.Attr)
	return fuse.OK
}

func (fs *fileSystem) setAttr(proceed tree.Proceed, in *fuse.SetAttrIn, out *fuse.AttrOut) fuse.Status {
	if wire.IsVirtual(in.NodeId) {
		return fs.virtSetAttr(&in.InHeader)
	}
	if fs.readonly(&in.InHeader) {
		return fuse.EROFS
	}
	var c tree.Change
	if size, ok := in.GetSize(); ok {
		c.Size = &size
	}
	if mode, ok := in.GetMode(); ok {
		c.Mode = &mode
	}
	if uid, ok := in.GetUID(); ok {
		c.UID = &uid
	}
	if gid, ok := in.GetGID(); ok {
		c.GID = &gid
	}
	c.Atime = timespec(in.Valid, fuse.FATTR_ATIME, fuse.FATTR_ATIME_NOW, in.Atime, in.Atimensec)
	c.Mtime = timespec(in.Valid, fuse.FATTR_MTIME, fuse.FATTR_MTIME_NOW, in.Mtime, in.Mtimensec)
	c.ClearSetID = in.Valid&fuse.FATTR_KILL_SUIDGID != 0
	e, err := fs.tree.Setattr(in.NodeId, c, fs.settings.AttrTimeout(in.Uid), proceed)
	if err != nil {
		return fs.nodeStatusOf(err)
	}
	out.SetTimeout(e.Keep)
	fs.attr(&out.Attr, &e.Attr)
	return fuse.OK
}

func timespec(valid, set, now uint32, sec uint64, nsec uint32) *unix.Timespec {
	switch {
	case valid&now != 0:
		return &unix.Timespec{Nsec: unix.UTIME_NOW}
	case valid&set != 0:
		return &unix.Timespec{Sec: int64(sec), Nsec: int64(nsec)}
	}
	return nil
}

func (fs *fileSystem) Readlink(_ <-chan struct{}, h *fuse.InHeader) ([]byte, fuse.Status) {
	if wire.IsVirtual(h.NodeId) {
		target, errno := fs.control.Readlink(callerOf(h), h.NodeId)
		return []byte(target), fuse.Status(errno)
	}
	target, err := fs.tree.Readlink(h.NodeId)
	return []byte(target), fs.statusOf(err)
}

// mayMake checks what every request that creates an entry must satisfy.
func (fs *fileSystem) mayMake(h *fuse.InHeader, name string) fuse.Status {
	switch {
	case wire.IsVirtual(h.NodeId):
		return fuse.EPERM
	case fs.readonly(h):
		return fuse.EROFS
	case h.NodeId == tree.RootID && name == controldir.DirName:
		return fuse.Status(unix.EEXIST)
	}
	return fuse.OK
}

func (fs *fileSystem) made(out *fuse.EntryOut, e tree.Entry, err error, h *fuse.InHeader) fuse.Status {
	if err != nil {
		return fs.statusOf(err)
	}
	fs.entry(out, e, h.Uid)
	return fuse.OK
}

func (fs *fileSystem) mknod(proceed tree.Proceed, in *fuse.MknodIn, name string, out *fuse.EntryOut) fuse.Status {
	if st := fs.mayMake(&in.InHeader, name); !st.Ok() {
		return st
	}
	if in.Mode&unix.S_IFMT != unix.S_IFREG {
		return fuse.ENOSYS // only regular files, as in 3FS (case 76)
	}
	e, err := fs.tree.Mknod(in.NodeId, name, fs.tree.ModeOfNew(in.NodeId, in.Mode, in.Umask), callerOf(&in.InHeader), fs.settings.AttrTimeout(in.Uid), proceed)
	if fs.done(&in.InHeader, err, unix.EEXIST) && fs.resentMade(&in.InHeader, name, unix.S_IFREG, out) {
		return fuse.OK
	}
	return fs.made(out, e, err, &in.InHeader)
}

func (fs *fileSystem) mkdir(proceed tree.Proceed, in *fuse.MkdirIn, name string, out *fuse.EntryOut) fuse.Status {
	if st := fs.mayMake(&in.InHeader, name); !st.Ok() {
		return st
	}
	e, err := fs.tree.Mkdir(in.NodeId, name, fs.tree.ModeOfNew(in.NodeId, in.Mode, in.Umask), callerOf(&in.InHeader), fs.settings.AttrTimeout(in.Uid), proceed)
	if fs.done(&in.InHeader, err, unix.EEXIST) && fs.resentMade(&in.InHeader, name, unix.S_IFDIR, out) {
		return fuse.OK
	}
	return fs.made(out, e, err, &in.InHeader)
}

func (fs *fileSystem) symlink(step tree.Proceed, proceed tree.Proceed, h *fuse.InHeader, target, name string, out *fuse.EntryOut) fuse.Status {
	if h.NodeId == wire.InoRmRf {
		return fs.symlinkIntoRmRf(step, h, target, out)
	}
	if wire.IsVirtual(h.NodeId) {
		return fs.virtSymlink(h, target, name, out)
	}
	if st := fs.mayMake(h, name); !st.Ok() {
		return st
	}
	if source, ok := strings.CutPrefix(target, movePrefix); ok {
		return fs.symlinkToMove(proceed, h, source, name, out)
	}
	e, err := fs.tree.Symlink(h.NodeId, name, target, callerOf(h), fs.settings.AttrTimeout(h.Uid), proceed)
	if fs.done(h, err, unix.EEXIST) && fs.resentLink(h, name, target, out) {
		return fuse.OK
	}
	if st := fs.made(out, e, err, h); !st.Ok() {
		return st
	}
	keep := fs.settings.SymlinkTimeout(h.Uid)
	out.SetEntryTimeout(keep)
	out.SetAttrTimeout(min(e.Keep, keep))
	return fuse.OK
}

func (fs *fileSystem) link(proceed tree.Proceed, in *fuse.LinkIn, name string, out *fuse.EntryOut) fuse.Status {
	if st := fs.mayMake(&in.InHeader, name); !st.Ok() {
		return st
	}
	if wire.IsVirtual(in.Oldnodeid) {
		return fuse.EPERM
	}
	e, err := fs.tree.Link(in.Oldnodeid, in.NodeId, name, callerOf(&in.InHeader), fs.settings.AttrTimeout(in.Uid), proceed)
	if fs.done(&in.InHeader, err, unix.EEXIST) && fs.resentEntry(&in.InHeader, name, out, func(e tree.Entry) bool { return e.ID == in.Oldnodeid }) {
		return fuse.OK
	}
	return fs.made(out, e, err, &in.InHeader)
}

func (fs *fileSystem) unlink(proceed tree.Proceed, h *fuse.InHeader, name string) fuse.Status {
	if wire.IsVirtual(h.NodeId) {
		// In read-only mode, too. 3FS refuses that, so registrations pile up.
		errno := fs.control.Unlink(callerOf(h), h.NodeId, name)
		if fs.done(h, errno, unix.ENOENT) {
			return fuse.OK
		}
		return fuse.Status(errno)
	}
	if fs.readonly(h) {
		return fuse.EROFS
	}
	err := fs.tree.Unlink(h.NodeId, name, proceed)
	if fs.done(h, err, unix.ENOENT) {
		return fuse.OK
	}
	return fs.statusOf(err)
}

func (fs *fileSystem) rmdir(proceed tree.Proceed, h *fuse.InHeader, name string) fuse.Status {
	if wire.IsVirtual(h.NodeId) || h.NodeId == tree.RootID && name == controldir.DirName {
		return fuse.EPERM
	}
	if fs.readonly(h) {
		return fuse.EROFS
	}
	err := fs.tree.Rmdir(h.NodeId, name, proceed)
	if fs.done(h, err, unix.ENOENT) {
		return fuse.OK
	}
	return fs.statusOf(err)
}

func (fs *fileSystem) rename(step tree.Proceed, proceed tree.Proceed, in *fuse.RenameIn, name, newName string) fuse.Status {
	in.Newdir = virtualIno(in.Newdir)
	fromVirtual := wire.IsVirtual(in.NodeId) || in.NodeId == tree.RootID && name == controldir.DirName
	toVirtual := wire.IsVirtual(in.Newdir) || in.Newdir == tree.RootID && newName == controldir.DirName
	switch {
	case fromVirtual || toVirtual && in.Newdir != wire.InoRmRf:
		return fuse.EPERM
	case fs.readonly(&in.InHeader):
		return fuse.EROFS
	case toVirtual:
		return fs.renameIntoRmRf(step, in, name, newName)
	}
	do := func() error {
		return fs.tree.Rename(in.NodeId, name, in.Newdir, newName, in.Flags, callerOf(&in.InHeader), proceed)
	}
	if in.Flags == unix.RENAME_EXCHANGE && fs.opts.State != nil {
		return fs.statusOf(fs.exchange(in, name, newName, do))
	}
	err := do()
	if fs.done(&in.InHeader, err, unix.ENOENT) && fs.isThere(in.Newdir, newName, in.Uid) {
		return fuse.OK
	}
	return fs.statusOf(err)
}

// StatFs shows the data directory's file system, and in a directory whose size is limited
// that.
func (fs *fileSystem) StatFs(_ <-chan struct{}, h *fuse.InHeader, out *fuse.StatfsOut) fuse.Status {
	st, err := fs.tree.Statfs()
	if err != nil {
		return fs.statusOf(err)
	}
	unit := uint64(st.Frsize)
	if unit == 0 {
		unit = uint64(st.Bsize)
	}
	*out = fuse.StatfsOut{
		Blocks: blocksOf(st.Blocks, unit), Bfree: blocksOf(st.Bfree, unit), Bavail: blocksOf(st.Bavail, unit),
		Bsize: statfsBlock, Frsize: statfsBlock, NameLen: 255,
	}
	id := h.NodeId
	if wire.IsVirtual(id) {
		id = tree.RootID
	}
	if capacity, free, limited := fs.tree.Space(id); limited {
		if uint64(max(free, 0))/unit > st.Bavail { // others fill the disk
			free = int64(st.Bavail * unit)
		}
		limit(out, capacity, free)
	}
	return fuse.OK
}

// limit makes out show a limit. Its blocks are smaller, since a limit may be, too.
func limit(out *fuse.StatfsOut, capacityBytes, freeBytes int64) {
	out.Bsize, out.Frsize = limitBlock, limitBlock
	out.Blocks = uint64(capacityBytes) / limitBlock
	out.Bfree = uint64(max(freeBytes, 0)) / limitBlock
	out.Bavail = out.Bfree
}

// blocksOf converts n units of that many bytes to statfs blocks. Exabytes do not overflow.
func blocksOf(n, unit uint64) uint64 {
	if unit >= statfsBlock {
		return n * (unit / statfsBlock)
	}
	return n / (statfsBlock / max(unit, 1))
}

// virtualTimeout is how long the kernel keeps entries of the control directory.
const virtualTimeout = 30 * time.Second
