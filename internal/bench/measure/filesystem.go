package measure

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// FileSystemName returns the type of the file system that holds dir.
func FileSystemName(dir string) string {
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) != nil {
		return "unknown file system"
	}
	switch uint32(st.Type) {
	case unix.TMPFS_MAGIC:
		return "tmpfs"
	case unix.EXT4_SUPER_MAGIC:
		return "ext4"
	case unix.XFS_SUPER_MAGIC:
		return "xfs"
	case unix.BTRFS_SUPER_MAGIC:
		return "btrfs"
	case unix.OVERLAYFS_SUPER_MAGIC:
		return "overlayfs"
	case unix.NFS_SUPER_MAGIC:
		return "nfs"
	case unix.FUSE_SUPER_MAGIC:
		return "fuse"
	case 0x00c36400:
		return "ceph"
	case 0x0bd00bd0:
		return "lustre"
	}
	return fmt.Sprintf("file system type %#x", uint32(st.Type))
}
