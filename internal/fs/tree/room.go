package tree

// What a successor must know of nodes takes room in the state of restarts, of which each user has a share. A node beyond that is not
// noted: to a successor it is unknown, and the kernel asks for its name again; what has no name then, such as a working directory there,
// is lost.
const (
	// nodeRecordBytes is a node's record without its name, and linkBytes a further place of it without that.
	nodeRecordBytes = 64
	linkBytes       = 16
	// nodeRoom is what a byte of a record takes: the log may treble, and is written anew beside it.
	nodeRoom = 4
)

// takeNodeRoomLocked takes the room for a node that was just charged to a user.
func (t *Tree) takeNodeRoomLocked(n *node) {
	bytes := nodeRecordBytes + len(n.name)
	for p := range t.links[n] {
		bytes += linkBytes + len(p.name)
	}
	t.takeRoomLocked(n, bytes)
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

// returnRoomLocked returns all that was taken for a node.
func (t *Tree) returnRoomLocked(n *node) {
	if t.journal != nil && n.kept > 0 {
		t.journal.state.Return(n.uid, int64(n.kept))
		n.kept = 0
	}
}
