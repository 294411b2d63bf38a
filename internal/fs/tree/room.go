package tree

// What a successor must know of nodes takes room in the state of restarts, of which each user has a share. A node beyond that is not
// noted: to a successor it is unknown, and the kernel asks for its name again; what has no name then, such as a working directory there,
// is lost. A node is charged to whoever looked first, but it is not for that user alone: who has room for a node below a directory, or
// looks at a node itself, has it charged to himself where its user had no room.
const (
	// nodeRecordBytes is a node's record without its name, and linkBytes a further place of it without that.
	nodeRecordBytes = 64
	linkBytes       = 16
	// nodeRoom is what a byte of a record takes: the log may treble, and is written anew beside it.
	nodeRoom = 4
)

// takeNodeRoomLocked takes the room for a node that was just charged to a user.
func (t *Tree) takeNodeRoomLocked(n *node) {
	t.takeRoomLocked(n, t.recordBytesLocked(n))
}

// recordBytesLocked returns how many bytes a node's records have.
func (t *Tree) recordBytesLocked(n *node) int {
	bytes := nodeRecordBytes + len(n.name)
	for p := range t.links[n] {
		bytes += linkBytes + len(p.name)
	}
	return bytes
}

// keepAboveLocked has the directories above a node that is kept kept as well, for the same user: without them, nothing leads to it.
func (t *Tree) keepAboveLocked(n *node) {
	if t.journal == nil || !n.charged || n.unkept {
		return
	}
	for d := n.parent; d != t.root; d = d.parent {
		if !t.chargeLocked(d, n.uid) {
			return // this user has no room any more
		}
	}
}

// chargeLocked charges a node to a user if nobody else keeps it, and reports whether a successor is to know it.
func (t *Tree) chargeLocked(n *node, uid uint32) bool {
	switch {
	case n.unkept:
		room := nodeRoom * t.recordBytesLocked(n)
		if !t.journal.state.Take(uid, int64(room)) {
			return false
		}
		t.heldLocked(n.uid, -1)
		t.heldLocked(uid, +1)
		n.uid, n.unkept, n.kept = uid, false, uint32(room)
		t.noteAllLocked(n)
	case !n.charged:
		n.uid, n.charged = uid, true
		t.heldLocked(uid, +1)
		if t.takeNodeRoomLocked(n); !n.unkept {
			t.noteLocked(func(b []byte) []byte { return appendCharge(b, n.id, uid) })
		}
	}
	return !n.unkept
}

// takeRoomLocked takes room for so many more bytes of a node's records, or returns some.
func (t *Tree) takeRoomLocked(n *node, bytes int) {
	switch {
	case t.journal == nil || !n.charged || n.unkept:
	case bytes <= 0:
		less := min(n.kept, uint32(nodeRoom*-bytes))
		n.kept -= less
		t.journal.state.Return(n.uid, int64(less))
	case t.journal.state.Take(n.uid, int64(nodeRoom*bytes)):
		n.kept += uint32(nodeRoom * bytes)
	default:
		t.noteMarkLocked(recordUnkept, n)
		t.returnRoomLocked(n)
		n.unkept = true
	}
}

// takeNameRoomLocked takes the room for a node's new name, or returns what it needs no more. A directory with others' nodes in it stays,
// if need be without the room for a longer name.
func (t *Tree) takeNameRoomLocked(n *node, old string) {
	if t.journal == nil || !n.charged || n.unkept || !n.directory() || n.children == 0 {
		t.takeRoomLocked(n, len(n.name)-len(old))
		return
	}
	need := uint32(nodeRoom * (nodeRecordBytes + len(n.name)))
	switch {
	case need < n.kept:
		t.journal.state.Return(n.uid, int64(n.kept-need))
		n.kept = need
	case t.journal.state.Take(n.uid, int64(need-n.kept)):
		n.kept = need
	}
}

// returnRoomLocked returns all that was taken for a node.
func (t *Tree) returnRoomLocked(n *node) {
	if t.journal != nil && n.kept > 0 {
		t.journal.state.Return(n.uid, int64(n.kept))
		n.kept = 0
	}
}
