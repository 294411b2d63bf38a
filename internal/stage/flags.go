package stage

import (
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/cred"
)

// Inode flags that 3FS clients may name. All but FlagImmutable choose a chunk
// placement there and mean nothing here.
const (
	FlagImmutable  = 0x10
	SupportedFlags = FlagImmutable | 0x40000 | 0x1000 | 0x1
)

// ByIno returns the node of an inode number as clients see it.
func (s *Stage) ByIno(ino uint64) (id uint64, err error) {
	if n, ok := s.byIno.get(ino); ok {
		return n.id, nil
	}
	return 0, unix.ENOENT
}

// Ino returns a node's inode number as clients see it.
func (s *Stage) Ino(id uint64) (uint64, error) {
	n, err := s.node(id)
	if err != nil {
		return 0, err
	}
	return n.ino, nil
}

// Flags returns the inode flags of a node; 0 where the backing file system has
// none.
func (s *Stage) Flags(id uint64) (flags uint32, err error) {
	err = s.withFlags(id, func(_ int, now int) error {
		flags = uint32(now) & SupportedFlags
		return nil
	})
	return flags, err
}

// SetFlags changes FlagImmutable for the super-user. For owners it succeeds
// when nothing changes. Errors: EINVAL for other flags, EPERM.
func (s *Stage) SetFlags(id uint64, c cred.Caller, flags uint32) error {
	if flags&^SupportedFlags != 0 {
		return unix.EINVAL
	}
	e, err := s.Getattr(id, 0)
	if err != nil {
		return err
	}
	if !c.Root() && c.UID != e.Attr.UID {
		return unix.EPERM
	}
	return s.withFlags(id, func(fd, now int) error {
		want := now&^FlagImmutable | int(flags)&FlagImmutable
		if want == now {
			return nil
		}
		if !c.Root() {
			return unix.EPERM
		}
		return unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, want)
	})
}

func (s *Stage) withFlags(id uint64, fn func(fd, now int) error) error {
	n, err := s.node(id)
	if err != nil {
		return err
	}
	if !n.regular() && !n.directory() {
		return unix.ENOTTY
	}
	if n.regular() {
		f, err := s.file(n, forReading)
		if err != nil {
			return err
		}
		defer f.Release()
		return fn(f.fd, flagsOf(f.fd))
	}
	fd, _, err := s.openNode(n, unix.O_RDONLY|unix.O_DIRECTORY, nil)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fn(fd, flagsOf(fd))
}

func flagsOf(fd int) int {
	flags, err := unix.IoctlGetInt(fd, unix.FS_IOC_GETFLAGS)
	if err != nil {
		return 0
	}
	return flags
}

// PunchHole makes ranges of a file read as zeros and frees their space, with
// the rights of c. The length stays.
func (s *Stage) PunchHole(id uint64, c cred.Caller, starts, ends []uint64) error {
	n, err := s.node(id)
	if err != nil {
		return err
	}
	if !n.regular() {
		return unix.EINVAL
	}
	f, err := s.acquire(n, c, forWriting)
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
		if err := unix.Fallocate(f.fd, how, int64(start), int64(end-start)); err != nil {
			return err
		}
		f.Written()
	}
	return nil
}
