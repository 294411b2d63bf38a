package fuseserver

import "github.com/kv3fs/kv3fs/internal/wire"

// The kernel holds a directory's lock while it waits for the answer to a link in it, or for
// the memory that a listing goes to. In a directory that all users share, one could keep all
// others waiting. So every user has directories 3fs-virt of its own: the kernel asks for
// their names each time, and gets nodes that differ by user, with the same inode numbers.
// Only the kernel sees these nodes; everywhere else the directories go by inode number.

const (
	virtualNodes    = 1 << 60 // no inode number of wire and no node of the tree begins so
	virtualNodeKind = 0xf << 60
	virtualDirShift = 32 // above the uid
)

// virtualDirs are the inode numbers of the directories, by their place in a node.
func virtualDirs() [5]uint64 {
	return [5]uint64{wire.InoVirt, wire.InoRmRf, wire.InoIovs, wire.InoGetConf, wire.InoSetConf}
}

// virtualNode returns a user's node of a virtual inode.
func virtualNode(uid uint32, ino uint64) uint64 {
	for i, dir := range virtualDirs() {
		if ino == dir {
			return virtualNodes | uint64(i)<<virtualDirShift | uint64(uid)
		}
	}
	return ino
}

// virtualIno returns what virtualNode was given. Nodes that it does not return are as they
// were.
func virtualIno(node uint64) uint64 {
	dirs := virtualDirs()
	if node&virtualNodeKind != virtualNodes {
		return node
	}
	if i := node >> virtualDirShift & 0xfffffff; i < uint64(len(dirs)) {
		return dirs[i]
	}
	return node
}
