package fuseserver

import (
	"encoding/binary"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/wire"
)

func (fs *fileSystem) ioctl(step tree.Proceed, proceed tree.Proceed, in *fuse.IoctlIn, arg []byte, _ *fuse.IoctlOut, out []byte) fuse.Status {
	if in.Flags&fuse.IOCTL_COMPAT != 0 {
		return fuse.ENOSYS
	}
	switch in.Cmd {
	case wire.IoctlGetMountName:
		return answer(out, wire.MountNameBytes, func() { copy(out, fs.opts.Cluster) })
	case wire.IoctlGetPathOffset:
		return answer(out, 4, func() { binary.NativeEndian.PutUint32(out, uint32(len(fs.point))) })
	case wire.IoctlGetMagic:
		return answer(out, 4, func() { binary.NativeEndian.PutUint32(out, wire.Magic) })
	case wire.IoctlGetVersion:
		return answer(out, 4, func() { binary.NativeEndian.PutUint32(out, wire.InterfaceVersion) })
	}
	if wire.IsVirtual(in.NodeId) {
		if in.Cmd == wire.IoctlFsync {
			fs.answerEmpty(in.Unique)
			return fuse.OK
		}
		return fuse.EINVAL
	}
	switch in.Cmd {
	case wire.IoctlFsync:
		return fs.ioctlFsync(in)
	case wire.IoctlGetFlags:
		return fs.ioctlGetFlags(in, out)
	case wire.IoctlFsGetXattr:
		return fs.ioctlFsGetXattr(in, out)
	case wire.IoctlRecursiveRm, wire.IoctlHardlink, wire.IoctlPunchHole, wire.IoctlMove, wire.IoctlRemove, wire.IoctlSetFlags:
	default:
		return fuse.EINVAL
	}
	if fs.readonly(&in.InHeader) {
		return fuse.EROFS
	}
	switch in.Cmd {
	case wire.IoctlRecursiveRm:
		return fs.ioctlRecursiveRm(step, in)
	case wire.IoctlHardlink:
		return fs.ioctlHardlink(proceed, in, arg)
	case wire.IoctlPunchHole:
		return fs.ioctlPunchHole(proceed, in, arg)
	case wire.IoctlMove:
		return fs.ioctlMove(proceed, in, arg)
	case wire.IoctlRemove:
		return fs.ioctlRemove(step, in, arg)
	default:
		return fs.ioctlSetFlags(in, arg)
	}
}

// answer fills out if the client has room for exactly size bytes.
func answer(out []byte, size int, fill func()) fuse.Status {
	if len(out) != size {
		return fuse.EINVAL
	}
	clear(out)
	fill()
	return fuse.OK
}

// answerEmpty tells the kernel that an ioctl succeeded and returns no bytes. Two ioctls
// are declared as four-byte reads, but clients call them without an argument: the bytes
// that go-fuse always sends would be written through a wild pointer. go-fuse's own reply
// comes second, when the kernel no longer knows the request.
func (fs *fileSystem) answerEmpty(unique uint64) {
	const header, payload = 16, 16 // fuse_out_header, fuse_ioctl_out with result 0
	reply := make([]byte, header+payload)
	binary.NativeEndian.PutUint32(reply, header+payload)
	binary.NativeEndian.PutUint64(reply[8:], unique)
	if _, err := unix.Write(fs.replyFD, reply); err != nil && err != unix.ENOENT {
		fs.log.Warn("ioctl not answered", "err", err)
	}
}

// answerEIO answers any request in go-fuse's place. go-fuse's own reply comes second.
func (fs *fileSystem) answerEIO(unique uint64) {
	const header = 16 // fuse_out_header
	failure := -int32(unix.EIO)
	reply := make([]byte, header)
	binary.NativeEndian.PutUint32(reply, header)
	binary.NativeEndian.PutUint32(reply[4:], uint32(failure))
	binary.NativeEndian.PutUint64(reply[8:], unique)
	if _, err := unix.Write(fs.replyFD, reply); err != nil && err != unix.ENOENT && err != unix.ENODEV {
		fs.log.Warn("a request whose time is over was not answered", "err", err)
	}
}

// ioctlFsync makes the file durable and makes the kernel drop its attributes. Only a
// regular file has something to write.
func (fs *fileSystem) ioctlFsync(in *fuse.IoctlIn) fuse.Status {
	switch o := fs.handles.get(in.Fh); {
	case o.gone:
		return fuse.Status(unix.ESTALE)
	case o.file != nil:
		if err := o.file.Sync(false); err != nil {
			return fs.statusOf(err)
		}
	}
	fs.invalidate(in.NodeId, false)
	fs.answerEmpty(in.Unique)
	return fuse.OK
}

func (fs *fileSystem) ioctlGetFlags(in *fuse.IoctlIn, out []byte) fuse.Status {
	flags, err := fs.tree.Flags(in.NodeId)
	if err != nil {
		return fs.statusOf(err)
	}
	if len(out) < 4 {
		return fuse.EINVAL
	}
	clear(out)
	binary.NativeEndian.PutUint32(out, flags)
	return fuse.OK
}

func (fs *fileSystem) ioctlFsGetXattr(in *fuse.IoctlIn, out []byte) fuse.Status {
	const (
		size      = 28   // struct fsxattr
		immutable = 0x08 // FS_XFLAG_IMMUTABLE
	)
	flags, err := fs.tree.Flags(in.NodeId)
	if err != nil {
		return fs.statusOf(err)
	}
	return answer(out, size, func() {
		if flags&tree.FlagImmutable != 0 {
			binary.NativeEndian.PutUint32(out, immutable)
		}
	})
}

func (fs *fileSystem) ioctlSetFlags(in *fuse.IoctlIn, arg []byte) fuse.Status {
	if len(arg) < 4 {
		return fuse.EINVAL
	}
	return fs.statusOf(fs.tree.SetFlags(in.NodeId, callerOf(&in.InHeader), binary.NativeEndian.Uint32(arg)))
}

func (fs *fileSystem) ioctlRecursiveRm(proceed tree.Proceed, in *fuse.IoctlIn) fuse.Status {
	done, st := fs.mayRemove(in.Uid)
	if !st.Ok() {
		return st
	}
	defer done()
	name, err := fs.tree.RemoveDir(callerOf(&in.InHeader), in.NodeId, proceed)
	fs.forgetName(name, 0)
	if err != nil && !fs.done(&in.InHeader, err, unix.ENOENT) {
		return fs.statusOf(err)
	}
	fs.answerEmpty(in.Unique)
	return fuse.OK
}

func (fs *fileSystem) ioctlHardlink(proceed tree.Proceed, in *fuse.IoctlIn, arg []byte) fuse.Status {
	a, err := wire.DecodeHardlink(arg)
	if err != nil {
		return fs.statusOf(err)
	}
	parent, err := fs.realDir(in, a.NewParentIno, a.Name)
	if err != nil {
		return fs.statusOf(err)
	}
	err = fs.tree.LinkAs(in.NodeId, parent, a.Name, callerOf(&in.InHeader), proceed)
	if err != nil && !(fs.done(&in.InHeader, err, unix.EEXIST) && fs.leadsTo(parent, a.Name, in.NodeId, in.Uid)) {
		return fs.statusOf(err)
	}
	fs.invalidate(in.NodeId, false) // the link count changed
	fs.notifier.entryAndWait(parent, a.Name)
	return fuse.OK
}

// realDir returns the node of a directory that an ioctl names by inode number, for an
// entry name outside the control directory. The client must be able to reach the
// directory.
func (fs *fileSystem) realDir(in *fuse.IoctlIn, ino uint64, name string) (uint64, error) {
	if wire.IsVirtual(ino) || ino == tree.RootID && name == controldir.DirName {
		return 0, unix.EPERM
	}
	return fs.tree.DirByIno(ino, callerOf(&in.InHeader))
}

func (fs *fileSystem) ioctlPunchHole(proceed tree.Proceed, in *fuse.IoctlIn, arg []byte) fuse.Status {
	ranges, err := wire.DecodePunchHole(arg)
	if err != nil {
		return fs.statusOf(err)
	}
	starts, ends := make([]uint64, len(ranges)), make([]uint64, len(ranges))
	block := uint64(fs.opts.BlockBytes)
	for i, r := range ranges {
		if r.Start%block != 0 || r.End%block != 0 {
			return fuse.EINVAL
		}
		starts[i], ends[i] = r.Start, r.End
	}
	return fs.statusOf(fs.tree.PunchHole(in.NodeId, callerOf(&in.InHeader), starts, ends, proceed))
}

func (fs *fileSystem) ioctlMove(proceed tree.Proceed, in *fuse.IoctlIn, arg []byte) fuse.Status {
	a, err := wire.DecodeMove(arg)
	if err != nil {
		return fs.statusOf(err)
	}
	if ino, err := fs.tree.Ino(in.NodeId); err != nil || ino != a.SrcParentIno {
		return fuse.EINVAL
	}
	if in.NodeId == tree.RootID && a.SrcName == controldir.DirName {
		return fuse.EPERM
	}
	to, err := fs.realDir(in, a.DstParentIno, a.DstName)
	if err != nil {
		return fs.statusOf(err)
	}
	if a.MoveToTrash {
		if st := fs.trashable(in, a, to); st != fuse.OK {
			return st
		}
	}
	err = fs.tree.RenameAs(in.NodeId, a.SrcName, to, a.DstName, callerOf(&in.InHeader), a.MoveToTrash, proceed)
	if err != nil && !(fs.done(&in.InHeader, err, unix.ENOENT) && fs.isThere(to, a.DstName, in.Uid)) {
		return fs.statusOf(err)
	}
	fs.notifier.entryAndWait(in.NodeId, a.SrcName)
	fs.notifier.entryAndWait(to, a.DstName)
	return fuse.OK
}

// trashable checks what a move to the trash requires beyond a rename, as 3FS does: no file is
// replaced, and a directory that enters the trash is the caller's, with all of its owner's
// rights.
func (fs *fileSystem) trashable(in *fuse.IoctlIn, a wire.Move, to uint64) fuse.Status {
	src, err := fs.tree.Lookup(in.NodeId, a.SrcName, in.Uid, 0)
	if err != nil {
		return fs.statusOf(err)
	}
	defer fs.Forget(src.ID, 1)
	if dst, err := fs.tree.Lookup(to, a.DstName, in.Uid, 0); err == nil {
		defer fs.Forget(dst.ID, 1)
		if dst.Attr.Mode&unix.S_IFMT == unix.S_IFREG {
			return fuse.Status(unix.EEXIST)
		}
	}
	const ownerAll = 0o700
	switch {
	case src.Attr.Mode&unix.S_IFMT != unix.S_IFDIR || !fs.tree.InTrash(to):
	case src.Attr.UID != in.Uid && in.Uid != 0, src.Attr.Mode&ownerAll != ownerAll:
		return fuse.EPERM
	}
	return fuse.OK
}

func (fs *fileSystem) ioctlRemove(proceed tree.Proceed, in *fuse.IoctlIn, arg []byte) fuse.Status {
	a, err := wire.DecodeRemove(arg)
	if err != nil {
		return fs.statusOf(err)
	}
	if ino, err := fs.tree.Ino(in.NodeId); err != nil || ino != a.ParentIno {
		return fuse.EINVAL
	}
	if in.NodeId == tree.RootID && a.Name == controldir.DirName {
		return fuse.EPERM
	}
	if a.Recursive {
		done, st := fs.mayRemove(in.Uid)
		if !st.Ok() {
			return st
		}
		defer done()
	}
	err = fs.tree.RemoveEntry(callerOf(&in.InHeader), in.NodeId, a.Name, a.Recursive, proceed)
	fs.notifier.entryAndWait(in.NodeId, a.Name)
	if fs.done(&in.InHeader, err, unix.ENOENT) {
		return fuse.OK
	}
	return fs.statusOf(err)
}
