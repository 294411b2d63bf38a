package tree

import (
	"encoding/binary"
	"errors"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// Inode flags that 3FS clients may set. FlagImmutable is set on the backing file. The
// others choose a chunk placement in 3FS and have no effect here; they are stored with
// the file, so that a client reads back what it has set.
const (
	FlagImmutable  = 0x10
	FlagHugeFile   = 0x40000
	SupportedFlags = FlagImmutable | FlagHugeFile | 0x1000 | 0x1

	keptFlags = SupportedFlags &^ FlagImmutable
)

// DirByIno returns the node of a directory by its inode number as clients see it, if c
// can reach the directory: a number is easily guessed. Errors: ENOENT, ENOTDIR, EPERM.
func (t *Tree) DirByIno(ino uint64, c cred.Caller) (id uint64, err error) {
	n, ok := t.byIno.get(ino)
	switch {
	case !ok:
		return 0, unix.ENOENT
	case !n.directory():
		return 0, unix.ENOTDIR
	case n == t.root:
		return n.id, nil
	}
	fd, _, err := t.openNode(n, unix.O_PATH|unix.O_DIRECTORY, &c)
	if err != nil {
		return 0, denied(err)
	}
	defer unix.Close(fd)
	// Opening it takes search permission above it; statAt takes it on the directory.
	return n.id, denied(cred.RunAs(c, func() error {
		_, err := statAt(fd, ".")
		return err
	}))
}

// Ino returns a node's inode number as clients see it.
func (t *Tree) Ino(id uint64) (uint64, error) {
	n, err := t.node(id)
	if err != nil {
		return 0, err
	}
	return n.ino, nil
}

// Flags returns the inode flags of a node.
func (t *Tree) Flags(id uint64) (flags uint32, err error) {
	err = t.withFlags(id, func(_ *node, _ int, now uint32) error {
		flags = now
		return nil
	})
	return flags, err
}

// SetFlags makes flags the flags of a node. The super-user may change any, the owner
// only FlagHugeFile. Errors: EINVAL for other flags, EPERM, and EOPNOTSUPP where the
// backing file system stores none.
func (t *Tree) SetFlags(id uint64, c cred.Caller, flags uint32) error {
	if flags&^SupportedFlags != 0 {
		return unix.EINVAL
	}
	e, err := t.Getattr(id, 0)
	if err != nil {
		return err
	}
	if !c.Root() && c.UID != e.Attr.UID {
		return unix.EPERM
	}
	return t.withFlags(id, func(n *node, fd int, now uint32) error {
		changed := now ^ flags
		switch {
		case changed == 0:
			return nil
		case !c.Root() && changed != FlagHugeFile:
			return unix.EPERM
		}
		// An immutable file accepts no attributes: set this flag last, clear it
		// first.
		becomes := flags&FlagImmutable != 0
		if changed&FlagImmutable != 0 && !becomes {
			if err := setImmutable(fd, false); err != nil {
				return err
			}
		}
		if changed&keptFlags != 0 {
			if err := t.growBy(n, fd, ownBytes, func() error { return keepFlags(fd, flags&keptFlags) }); err != nil {
				return err
			}
		}
		if changed&FlagImmutable != 0 && becomes {
			return setImmutable(fd, true)
		}
		return nil
	})
}

func setImmutable(fd int, on bool) error {
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return unix.EOPNOTSUPP
	}
	flags &^= FlagImmutable
	if on {
		flags |= FlagImmutable
	}
	return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, flags)
}

// flagsName returns the name of the extended attribute that stores flags: one that
// users cannot change, if the daemon has the privilege to use it.
func flagsName() string {
	if cred.Privileged() {
		return "trusted.kv3fs.flags"
	}
	return "user.kv3fs.flags"
}

func keepFlags(fd int, flags uint32) error {
	if flags == 0 {
		if err := unix.Fremovexattr(fd, flagsName()); !errors.Is(err, unix.ENODATA) {
			return err
		}
		return nil
	}
	return unix.Fsetxattr(fd, flagsName(), binary.LittleEndian.AppendUint32(nil, flags), 0)
}

func flagsOf(fd int) uint32 {
	var flags uint32
	if backing, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS); err == nil {
		flags = uint32(backing) & FlagImmutable
	}
	var kept [4]byte
	if n, err := unix.Fgetxattr(fd, flagsName(), kept[:]); err == nil && n == len(kept) {
		flags |= binary.LittleEndian.Uint32(kept[:]) & keptFlags
	}
	return flags
}

func (t *Tree) withFlags(id uint64, fn func(n *node, fd int, now uint32) error) error {
	n, err := t.node(id)
	if err != nil {
		return err
	}
	if !n.regular() && !n.directory() {
		return unix.ENOTTY
	}
	if n.regular() {
		f, err := t.file(n, forReading)
		if err != nil {
			return err
		}
		defer f.Release()
		return fn(n, f.fd, flagsOf(f.fd))
	}
	fd, _, err := t.openNode(n, unix.O_RDONLY|unix.O_DIRECTORY, nil)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fn(n, fd, flagsOf(fd))
}

// PunchHole makes ranges of a file read as zeros and frees their space, with
// the rights of c. The length stays.
func (t *Tree) PunchHole(id uint64, c cred.Caller, starts, ends []uint64, proceed ...Proceed) error {
	n, err := t.node(id)
	if err != nil {
		return err
	}
	if !n.regular() {
		return unix.EINVAL
	}
	f, err := t.acquire(n, c, forWriting)
	if err != nil {
		return denied(err)
	}
	defer f.Release()
	for i, start := range starts {
		end := min(ends[i], 1<<63-1)
		if start >= end {
			continue
		}
		const how = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
		err := f.Sums().Change(f.fd, func() error {
			return asWriter(c.UID, true, after(proceed, func() error {
				return unix.Fallocate(f.fd, how, int64(start), int64(end-start))
			}, n))
		})
		f.Settle(0)
		if err != nil {
			return err
		}
		f.Written()
	}
	return nil
}
