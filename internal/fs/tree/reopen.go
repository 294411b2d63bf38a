package tree

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
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
		h.mapping()
	case h.access == unix.O_WRONLY && !seen:
		h.file.Sums().Unseen()
	}
}

// OpenMade opens a file that a predecessor has made for c, and counts one reference to its node. An error says that
// there is none: no regular file of c's.
func (t *Tree) OpenMade(parent uint64, name string, flags int, c cred.Caller, keep time.Duration) (Entry, *Handle, error) {
	e, err := t.Lookup(parent, name, c.UID, keep)
	if err != nil {
		return Entry{}, nil, err
	}
	h, err := t.openMade(e, flags, c)
	if err != nil {
		t.Forget(e.ID, 1)
		return Entry{}, nil, err
	}
	e.Keep = 0
	return e, h, nil
}

func (t *Tree) openMade(e Entry, flags int, c cred.Caller) (*Handle, error) {
	if e.Attr.Mode&unix.S_IFMT != unix.S_IFREG || e.Attr.UID != c.UID {
		return nil, unix.EEXIST
	}
	n, err := t.node(e.ID)
	if err != nil {
		return nil, err
	}
	access := flags & unix.O_ACCMODE
	f, err := t.openLocked(t.useOpen(n), access, nil, c.UID)
	if err != nil {
		return nil, err
	}
	return f.handle(holder{uid: c.UID}, access, directions{true, true}), nil
}

// MayHaveAppended reports whether b was appended to the file at an offset, as far as the file goes: then it can be written there.
func (h *Handle) MayHaveAppended(b []byte, off int64) bool {
	f, err := h.file.of.tree.file(h.file.of.node, forReading)
	if err != nil {
		return false
	}
	defer f.Release()
	has := make([]byte, len(b))
	n, err := preadFull(f.fd, has, off)
	if err != nil || string(has[:n]) != string(b[:n]) {
		return false
	}
	st, err := statFD(f.fd)
	return err == nil && st.Size >= uint64(off)
}
