package wire

// Inode numbers of the virtual directory (2.1). Numbers of real files have none of the
// top four bits set.
const (
	InoVirt         = 0xfffffffffffffffe // /3fs-virt
	InoRmRf         = 0xfffffffffffffffd // /3fs-virt/rm-rf
	InoIovs         = 0xffffffff80000000 // /3fs-virt/iovs
	InoSubmitHigh   = 0xffffffff7fffffff
	InoSubmitNormal = 0xffffffff7ffffffe
	InoSubmitLow    = 0xffffffff7ffffffd
	InoIovFirst     = 0xffffffff7fff0001 // table index d has InoIovFirst - d
	InoGetConf      = 0xffffffff00000000
	InoGetConfFirst = 0xfffffffeffffffff // key i has InoGetConfFirst - i
	InoSetConf      = 0xfffffffe80000000
	InoSetConfFirst = 0xfffffffe7fffffff // reply to setting key i
	inoTransientTop = 100 << 30

	VirtualMask = 0xf000000000000000

	// VirtualTime is atime, mtime and ctime of all virtual inodes, in seconds.
	VirtualTime = 1685548800

	// MaxIovs bounds iovs and rings together (iov_limit).
	MaxIovs = 1 << 20
)

// IsVirtual reports whether an inode number belongs to the virtual directory.
func IsVirtual(ino uint64) bool { return ino&VirtualMask != 0 }

// TransientIno returns the inode number in the reply to creating an rm-rf or mv:
// symlink in a directory.
func TransientIno(parentIno uint64) uint64 { return ^(inoTransientTop + parentIno) + 1 }
