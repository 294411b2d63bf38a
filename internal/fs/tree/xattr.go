package tree

import (
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

const (
	userPrefix = "user."
	ownPrefix  = "user.kv3fs." // kv3fs's own: no client sees them in the data directory
	// mostNames bounds a list of names, as the kernel does.
	mostNames = 1 << 16
)

// IsUserXattr reports whether name is that of an extended attribute that clients may have.
func IsUserXattr(name string) bool {
	return strings.HasPrefix(name, userPrefix) && !strings.HasPrefix(name, ownPrefix)
}

// UserXattr copies a user attribute of a node to dest and returns its size; with an empty
// dest it only returns the size. The caller has checked the client's rights, as in
// SetUserXattr. Errors: ENODATA where there is none, ERANGE where dest is too short,
// EOPNOTSUPP where the backing file system has no user attributes.
func (t *Tree) UserXattr(id uint64, name string, dest []byte) (size int, err error) {
	n, err := t.node(id)
	if err != nil {
		return 0, err
	}
	err = t.onInode(n, func(fd int, _ *unix.Statx_t) (err error) {
		size, err = unix.Getxattr(procPath(fd), name, dest)
		return err
	})
	return size, err
}

// UserXattrs lists the names of the user attributes of a node.
func (t *Tree) UserXattrs(id uint64) (names []string, err error) {
	n, err := t.node(id)
	if err != nil {
		return nil, err
	}
	var list []byte
	err = t.onInode(n, func(fd int, _ *unix.Statx_t) error {
		size, err := unix.Listxattr(procPath(fd), nil)
		if err != nil || size == 0 {
			return err
		}
		list = make([]byte, mostNames)
		size, err = unix.Listxattr(procPath(fd), list)
		list = list[:max(size, 0)]
		return err
	})
	if err == unix.EOPNOTSUPP {
		err = nil
	}
	for name := range strings.SplitSeq(string(list), "\x00") {
		if IsUserXattr(name) {
			names = append(names, name)
		}
	}
	return names, err
}

// SetUserXattr sets a user attribute for c, or removes it if value is nil. flags are those of
// setxattr(2).
func (t *Tree) SetUserXattr(id uint64, name string, value []byte, flags int, c cred.Caller) error {
	n, err := t.node(id)
	if err != nil {
		return err
	}
	return t.onInode(n, func(fd int, _ *unix.Statx_t) error {
		return t.growBy(n, fd, attributeBytes(value), func() error {
			return cred.CreateAs(c, func() error { // it may need a block
				return t.keepingSums(n, fd, func() error {
					if value == nil {
						return unix.Removexattr(procPath(fd), name)
					}
					return unix.Setxattr(procPath(fd), name, value, flags)
				})
			})
		})
	})
}

// attributeBytes returns how much more an inode may take with an attribute of that value; nil:
// without it.
func attributeBytes(value []byte) int64 {
	if value == nil {
		return 0
	}
	return ownBytes + int64(len(value))
}
