package tree

import (
	"slices"

	"golang.org/x/sys/unix"
)

// recalled is what a journal says, while it is read.
type recalled struct {
	nodes  map[uint64]*recalledNode
	locks  map[identity]uint32
	moving map[uint64][]recalledMove // of nodes whose places were not noted since
}

type recalledPlace struct {
	parent uint64
	name   string
}

type recalledMove struct{ from, to recalledPlace }

type recalledNode struct {
	node     *node
	at       recalledPlace
	links    map[recalledPlace]bool
	gone     bool
	children int
	verdict  verdictOfNode
}

// verdictOfNode says whether a node's directories lead to the root.
type verdictOfNode byte

const (
	unjudged verdictOfNode = iota
	judging                // one that is met again is its own directory
	kept
	refused
)

func newRecalled() *recalled {
	return &recalled{nodes: map[uint64]*recalledNode{}, locks: map[identity]uint32{}, moving: map[uint64][]recalledMove{}}
}

// read applies the records of one piece of the log. Those of a node that is not known are older than a
// compaction, and mean nothing.
func (r *recalled) read(b []byte) error {
	reader := recordReader{b: b}
	for len(reader.b) > 0 {
		v := reader.record()
		if reader.err != nil {
			return reader.err
		}
		r.apply(&v)
	}
	return nil
}

func (r *recalled) apply(v *recordValue) {
	switch v.kind {
	case recordNode:
		r.begin(v)
		return
	case recordLock:
		r.locks[v.key] = v.uid
		return
	case recordUnlock:
		delete(r.locks, v.key)
		return
	}
	n := r.nodes[v.id]
	if n == nil {
		return
	}
	switch v.kind {
	case recordRefs:
		n.node.lookups = v.lookups
	case recordPlace:
		n.at = v.at
	case recordLink:
		if n.links == nil {
			n.links = map[recalledPlace]bool{}
		}
		n.links[v.at] = true
	case recordUnlink:
		delete(n.links, v.at)
	case recordGone:
		n.gone = true
	case recordAside:
		n.node.aside.Store(true)
	case recordUnkept:
		delete(r.nodes, v.id)
	case recordCharge:
		n.node.uid, n.node.charged = v.uid, true
	case recordMoving:
		r.moving[v.id] = append(r.moving[v.id], recalledMove{v.at, v.to})
		return
	default:
		return
	}
	if v.kind == recordPlace || v.kind == recordLink || v.kind == recordUnlink {
		delete(r.moving, v.id)
	}
}

// begin is for a node that is new, or told of again.
func (r *recalled) begin(v *recordValue) {
	if v.id <= RootID {
		return
	}
	n := &node{id: v.id, ino: v.ino, key: v.key, kind: v.mode & unix.S_IFMT, lookups: v.lookups, uid: v.uid, charged: v.flags&flagCharged != 0}
	n.aside.Store(v.flags&flagAside != 0)
	r.nodes[v.id] = &recalledNode{node: n, at: v.at, gone: v.flags&flagGone != 0}
	delete(r.moving, v.id)
}

// prune drops nodes that nothing refers to, and those that no path leads to.
func (r *recalled) prune() {
	for _, n := range r.nodes {
		r.judge(n)
	}
	for id, n := range r.nodes {
		if n.verdict != kept {
			delete(r.nodes, id)
			continue
		}
		for at := range n.links {
			if !r.keeps(at.parent) {
				delete(n.links, at)
			}
		}
	}
	var idle []*recalledNode
	for _, n := range r.nodes {
		r.count(n, +1)
	}
	for _, n := range r.nodes {
		if n.unused() {
			idle = append(idle, n)
		}
	}
	for len(idle) > 0 {
		n := idle[len(idle)-1]
		idle = idle[:len(idle)-1]
		delete(r.nodes, n.node.id)
		for _, p := range r.count(n, -1) {
			if p.unused() {
				idle = append(idle, p)
			}
		}
	}
}

func (n *recalledNode) unused() bool { return n.node.lookups == 0 && n.children == 0 }

// judge sets n's verdict, and those of the directories above it.
func (r *recalled) judge(n *recalledNode) {
	var path []*recalledNode
	said := refused
	for at := n; ; {
		if at.verdict == kept || at.verdict == refused {
			said = at.verdict
			break
		}
		if at.verdict == judging {
			break
		}
		at.verdict = judging
		path = append(path, at)
		if at.at.parent == RootID {
			said = kept
			break
		}
		above := r.nodes[at.at.parent]
		if above == nil || !above.node.directory() {
			break
		}
		at = above
	}
	for _, at := range path {
		at.verdict = said
	}
}

// keeps reports whether places in a directory are to be kept.
func (r *recalled) keeps(dir uint64) bool {
	d := r.nodes[dir]
	return dir == RootID || d != nil && d.verdict == kept && d.node.directory()
}

// count adds n's places to the counts of their directories, which it returns.
func (r *recalled) count(n *recalledNode, by int) (dirs []*recalledNode) {
	one := func(dir uint64) {
		if d := r.nodes[dir]; d != nil {
			d.children += by
			dirs = append(dirs, d)
		}
	}
	one(n.at.parent)
	for at := range n.links {
		one(at.parent)
	}
	return dirs
}

// recall puts what a journal says into an empty tree, and returns how many nodes that are.
func (t *Tree) recall(r *recalled) int {
	r.prune()
	t.mu.Lock()
	for _, n := range r.nodes {
		t.recallNodeLocked(r, n)
	}
	for _, n := range r.nodes {
		t.recallPlacesLocked(r, n)
	}
	for _, n := range r.nodes {
		if n.node.charged {
			t.takeNodeRoomLocked(n.node)
		}
	}
	for _, n := range r.nodes { // there may be less room than there was
		t.keepAboveLocked(n.node)
	}
	t.mu.Unlock()
	t.locksMu.Lock()
	for k, uid := range r.locks {
		if t.lockers.Take(uid, 1) {
			t.locks[k] = uid
		}
	}
	t.locksMu.Unlock()
	for id, moves := range r.moving {
		if n := r.nodes[id]; n != nil {
			t.settleMoves(n.node, moves)
		}
	}
	return len(r.nodes)
}

func (t *Tree) recallNodeLocked(r *recalled, rn *recalledNode) {
	n := rn.node
	if n.regular() {
		n.hotUntil.Store(unseen) // a client may have it mapped
	}
	n.cached.Store(1) // the kernel may have got attributes and bytes that it was not told to forget
	t.byID.put(n.id, n)
	t.nodes.Add(1)
	if now, ok := t.byIno.get(n.ino); !ok || now.id < n.id {
		t.byIno.put(n.ino, n)
	}
	if now, ok := t.byIdentity.get(n.key); !rn.gone && (!ok || now.id < n.id) {
		t.byIdentity.put(n.key, n)
	}
	if n.charged {
		t.held[n.uid]++
	}
}

func (t *Tree) recallPlacesLocked(r *recalled, rn *recalledNode) {
	n := rn.node
	n.place = t.recalledPlace(r, rn.at)
	n.parent.children++
	for at := range rn.links {
		p := t.recalledPlace(r, at)
		if t.links[n] == nil {
			t.links[n] = make(map[place]bool)
		}
		t.links[n][p] = true
		p.parent.children++
	}
}

func (t *Tree) recalledPlace(r *recalled, at recalledPlace) place {
	if at.parent == RootID {
		return place{t.root, at.name}
	}
	return place{r.nodes[at.parent].node, at.name}
}

// settleMoves is for a node whose daemon was killed while it moved it: it is where its inode is.
func (t *Tree) settleMoves(n *node, moves []recalledMove) {
	for _, m := range slices.Backward(moves) {
		from, ok := t.byID.get(m.from.parent)
		to, known := t.byID.get(m.to.parent)
		if !ok || !known {
			continue
		}
		if t.isAt(n, to, m.to.name) && !t.isAt(n, from, m.from.name) {
			t.moved(n, place{from, m.from.name}, place{to, m.to.name})
			return
		}
	}
}

// isAt reports whether an entry leads to n.
func (t *Tree) isAt(n *node, d *node, name string) bool {
	var st unix.Statx_t
	err := t.inDir(d, func(fd int) (err error) {
		st, err = statAt(fd, name)
		return err
	})
	return err == nil && t.identityOf(&st) == n.key
}

// ForgetPredecessors drops the nodes of former daemons that no file of which is open, because their mount has ended: the kernel has
// no references to them any more.
func (t *Tree) ForgetPredecessors() {
	var old []*node
	for n := range t.byID.all {
		if n != t.root && n.id < t.generation<<generationShift {
			old = append(old, n)
		}
	}
	const atOnce = 1024 // others wait meanwhile
	for some := range slices.Chunk(old, atOnce) {
		t.mu.Lock()
		for _, n := range some {
			if n.lookups > 0 && n.open.Load() == nil {
				n.lookups = 0
				t.noteRefsLocked(n)
				t.dropLocked(n)
			}
		}
		t.mu.Unlock()
		t.commitMany()
	}
}
