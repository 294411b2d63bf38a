package cred

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Allows reports what the permission bits of an inode allow c, as the kernel reads them:
// the owner's, else the group's, else those of others. Groups beyond c.GID are looked up
// only where they make a difference.
func (c Caller) Allows(mode, uid, gid uint32) (read, write bool) {
	if c.Root() {
		return true, true
	}
	const readWrite = unix.S_IROTH | unix.S_IWOTH
	bits := mode & readWrite
	switch group := mode >> 3 & readWrite; {
	case c.UID == uid:
		bits = mode >> 6 & readWrite
	case c.GID == gid, group != bits && slices.Contains(supplementary(c), int(gid)):
		bits = group
	}
	return bits&unix.S_IROTH != 0, bits&unix.S_IWOTH != 0
}
