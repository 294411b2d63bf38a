package tree

import (
	"golang.org/x/sys/unix"
)

// HandleState is what a successor must know of a handle to open it again.
type HandleState struct {
	Node     uint64
	Access   int // of open(2)
	UID, GID uint32
	OneGroup bool // the right to open it may have come from the group
	Reads    bool // the user had the right to read it,
	Writes   bool // and to write it
	// Inode names the file's inode, whatever becomes of its names. Empty: there is no such name.
	Inode     []byte
	InodeType int32
}

// State returns what a successor must know of h.
func (h *Handle) State() HandleState {
	s := HandleState{Node: h.ID(), Access: h.access, UID: h.holder.uid, GID: h.holder.gid, OneGroup: h.holder.oneGroup,
		Reads: h.grants[forReading], Writes: h.grants[forWriting]}
	of := h.file.of
	if !of.tree.canOpenInodes() || of.node.key.dev != of.tree.root.key.dev {
		return s
	}
	inode := of.inode.Load()
	if inode == nil {
		handle, _, err := unix.NameToHandleAt(h.file.fd, "", unix.AT_EMPTY_PATH)
		if err != nil {
			return s
		}
		inode = &handle
		of.inode.Store(inode)
	}
	s.Inode, s.InodeType = inode.Bytes(), inode.Type()
	return s
}

// canOpenInodes reports whether there is somebody to tell how inodes are opened without their names.
func (t *Tree) canOpenInodes() bool { return t.journal != nil }

// Reopen makes the handle that s was, though the tree was another one. ESTALE: the node is not known, or its file is gone.
func (t *Tree) Reopen(s HandleState) (*Handle, error) {
	n, err := t.node(s.Node)
	if err != nil {
		return nil, err
	}
	if !n.regular() || s.Access > unix.O_RDWR || s.Access < 0 {
		return nil, unix.ESTALE
	}
	f, err := t.openLocked(t.useOpen(n), s.Access, nil, s.UID)
	if err != nil && len(s.Inode) > 0 {
		f, err = t.openByInode(n, s)
	}
	if err != nil {
		if mayHaveMoved(err) {
			err = unix.ESTALE
		}
		return nil, err
	}
	if s.Access != unix.O_RDONLY {
		f.Sums() // before the client can write past the daemon
	}
	who := holder{uid: s.UID}
	if s.OneGroup {
		who = holder{uid: s.UID, gid: s.GID, oneGroup: true}
	}
	h := f.handle(who, s.Access, directions{s.Reads, s.Writes})
	h.looked.begin(h, s.UID)
	h.CachePages() // the kernel may have some
	return h, nil
}

// openByInode opens a node that no name leads to.
func (t *Tree) openByInode(n *node, s HandleState) (*File, error) {
	root, err := openBeneath(t.rootFD, ".", unix.O_RDONLY|unix.O_DIRECTORY)
	if err != nil {
		return nil, err
	}
	defer unix.Close(root)
	fd, err := unix.OpenByHandleAt(root, unix.NewFileHandle(s.InodeType, s.Inode), s.Access|unix.O_NONBLOCK|unix.O_CLOEXEC)
	if err != nil {
		return nil, unix.ESTALE
	}
	st, err := statFD(fd)
	if err == nil && (t.identityOf(&st) != n.key || uint32(st.Mode)&unix.S_IFMT != n.kind) {
		err = unix.ESTALE
	}
	if err != nil {
		unix.Close(fd)
		return nil, err
	}
	return t.adopt(n, fd, s.Access, s.UID), nil
}

// Passed is Passes for a handle of Reopen, whose client may have done with the file what it likes meanwhile.
func (h *Handle) Passed(seen bool) {
	h.looked.unseen = !seen
	switch {
	case h.access == unix.O_RDWR:
		h.mayBeMapped()
	case h.access == unix.O_WRONLY && !seen:
		h.file.Sums().Unseen()
	}
}
