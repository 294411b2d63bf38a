package tree

import (
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

// Names of the extended attributes that hold POSIX ACLs, in the kernel's format: who may
// use an entry, and what new entries of a directory get.
const (
	AccessACL  = "system.posix_acl_access"
	DefaultACL = "system.posix_acl_default"
)

// IsACL reports whether name is that of an ACL.
func IsACL(name string) bool { return name == AccessACL || name == DefaultACL }

// HasACLs reports whether the file system of the data directory keeps ACLs.
func (t *Tree) HasACLs() bool { return t.acls }

// KeepsACLs is HasACLs for a directory of which there is no tree.
func KeepsACLs(dir string) bool {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	return keepsACLs(fd)
}

func keepsACLs(fd int) bool {
	_, err := unix.Getxattr(procPath(fd), AccessACL, nil)
	return err == nil || err == unix.ENODATA
}

// ACL copies an ACL of a node to dest and returns its size; with an empty dest it only
// returns the size. Errors: ENODATA where there is none, ERANGE where dest is too short.
func (t *Tree) ACL(id uint64, name string, dest []byte) (size int, err error) {
	if !t.acls || !IsACL(name) {
		return 0, unix.ENODATA
	}
	n, err := t.node(id)
	if err != nil {
		return 0, err
	}
	err = t.onInode(n, func(fd int, _ *unix.Statx_t) (err error) {
		size, err = unix.Getxattr(procPath(fd), name, dest)
		return err
	})
	if err == unix.EOPNOTSUPP { // a symbolic link, or another file system is mounted there
		err = unix.ENODATA
	}
	return size, err
}

// ACLs lists the names of the ACLs that a node has.
func (t *Tree) ACLs(id uint64) (names []string) {
	for _, name := range []string{AccessACL, DefaultACL} {
		if size, err := t.ACL(id, name, nil); err == nil && size > 0 {
			names = append(names, name)
		}
	}
	return names
}

// SetACL gives a node an ACL, or removes it if value is nil, with the rights of c. The
// mode changes with it. Those of the root are the data directory's: EPERM.
func (t *Tree) SetACL(id uint64, name string, value []byte, c cred.Caller) error {
	n, err := t.node(id)
	switch {
	case err != nil:
		return err
	case !t.acls || !IsACL(name):
		return unix.EOPNOTSUPP
	case n == t.root:
		return unix.EPERM
	}
	err = t.onInode(n, func(fd int, _ *unix.Statx_t) error {
		return t.growBy(n, fd, attributeBytes(value), func() error {
			return cred.RunAs(c, func() error {
				return t.keepingSums(n, fd, func() error {
					if value == nil {
						return unix.Removexattr(procPath(fd), name)
					}
					return unix.Setxattr(procPath(fd), name, value, 0)
				})
			})
		})
	})
	t.rightsChanged(n)
	return err
}

// ModeOfNew returns the mode with which to create an entry in a directory, for a client
// with that umask: the kernel does not apply it where the directory has a default ACL.
func (t *Tree) ModeOfNew(parent uint64, mode, umask uint32) uint32 {
	if mode&umask == 0 {
		return mode
	}
	if _, err := t.ACL(parent, DefaultACL, nil); err == nil {
		return mode
	}
	return mode &^ umask
}

// hasACL reports whether an open file has an ACL beside its mode.
func (t *Tree) hasACL(fd int) bool {
	if !t.acls {
		return false
	}
	_, err := unix.Fgetxattr(fd, AccessACL, nil)
	return err != unix.ENODATA && err != unix.EOPNOTSUPP
}
