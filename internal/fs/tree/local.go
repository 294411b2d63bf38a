package tree

import "golang.org/x/sys/unix"

// isLocal reports whether a file is on a file system known to lie on memory or a block
// device of this machine, and on no other file system.
func isLocal(fd int) bool {
	var st unix.Statfs_t
	if unix.Fstatfs(fd, &st) != nil {
		return false
	}
	switch st.Type {
	case unix.EXT4_SUPER_MAGIC, unix.XFS_SUPER_MAGIC, unix.BTRFS_SUPER_MAGIC, unix.F2FS_SUPER_MAGIC, unix.TMPFS_MAGIC:
		return true
	}
	return false
}

// CloseMayFail reports whether a close of the file may have the error of a write to
// report. Network file systems and those above others may write when a file is closed;
// local ones do nothing then.
func (h *Handle) CloseMayFail() bool { return h.Writes() && !isLocal(h.file.fd) }
