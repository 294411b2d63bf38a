package tree

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// RootID is the node number and the inode number of the root.
const RootID = 1

const (
	// Larger backing inode numbers, and those of other devices, are replaced by a
	// hash from madeUpInoStart to twice that. A hash, so that an inode always gets
	// the same number.
	largestBackingIno = 1<<52 - 1
	madeUpInoStart    = 1 << 56
	// 3FS uses inode numbers up to this one for itself.
	reservedInos = 2
)

// identity distinguishes an inode from every other one, including a later one that
// reuses its number.
type identity struct {
	dev, ino uint64
	birth    int64 // nanoseconds, 0 where the file system keeps none, or changes it
}

func (k identity) hash() uint64 { return k.ino ^ k.dev<<20 ^ uint64(k.birth) }

func (t *Tree) identityOf(st *unix.Statx_t) identity {
	k := identity{dev: uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 && !t.overlay {
		k.birth = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return k
}

// place is a directory entry: where a node is.
type place struct {
	parent *node
	name   string
}

// node is an inode that the kernel knows. There may be millions, so a node is small,
// and what only some need is in side tables.
type node struct {
	id, ino uint64
	key     identity
	kind    uint32 // S_IFMT bits
	uid     uint32 // whom it is charged to, if charged is set; both guarded by Tree.mu

	// Guarded by Tree.mu. parent is nil for the root only.
	place
	lookups  uint64 // references the kernel counts
	children int    // places in this directory; each keeps it from being dropped
	charged  bool
	unkept   bool // a successor is not to know it: there is no room for it in the state

	// paged says that the kernel may hold bytes of the file in pages of its own, see
	// CachePages.
	paged atomic.Bool
	// aside says that the file was set aside. Its name, which the kernel still has, must not lead to it.
	aside atomic.Bool
	kept  uint32 // room taken for it in the state; guarded by Tree.mu

	open atomic.Pointer[openFile]

	// cached counts how often the kernel got attributes to keep, invalidated how many of
	// those it was told to forget. Where the two are equal, the kernel holds none that
	// have not expired. Both wrap.
	cached, invalidated atomic.Uint32
	// hotUntil is the time until which the kernel gets no attributes to keep, because
	// of ring writes; in nanoseconds on the tree's clock. For files that clients may have
	// mapped, see unseen.
	hotUntil atomic.Int64
}

func (n *node) regular() bool   { return n.kind == unix.S_IFREG }
func (n *node) directory() bool { return n.kind == unix.S_IFDIR }

// node returns the node that the kernel knows as id.
func (t *Tree) node(id uint64) (*node, error) {
	if n, ok := t.byID.get(id); ok {
		return n, nil
	}
	return nil, unix.ESTALE
}

// remember returns the node of an inode that was found in place p, and counts one
// reference of the kernel. generation is Tree.renames from before it was found: a node
// that has been renamed since is not moved back. fresh reports that it is to be charged: it is new, or its user had no room for it.
func (t *Tree) remember(p place, st *unix.Statx_t, generation uint64) (n *node, fresh bool) {
	key := t.identityOf(st)
	kind := uint32(st.Mode) & unix.S_IFMT
	t.mu.Lock()
	defer t.mu.Unlock()
	n, ok := t.byIdentity.get(key)
	if ok && n.kind == kind {
		t.seenLocked(n, p, st, generation)
		n.lookups++
		t.noteRefsLocked(n)
		return n, n.unkept
	}
	n = &node{id: t.nextID.Add(1), key: key, kind: kind, place: p, lookups: 1}
	n.ino = t.inoFor(key.dev, key.ino)
	for n.ino >= madeUpInoStart {
		other, taken := t.byIno.get(n.ino)
		if !taken || other.key.dev == key.dev && other.key.ino == key.ino {
			break
		}
		n.ino++ // a collision: rings must not confuse the two inodes
	}
	p.parent.children++
	t.byIdentity.put(key, n)
	t.byIno.put(n.ino, n)
	t.byID.put(n.id, n)
	t.nodes.Add(1)
	t.noteNewLocked(n)
	return n, true
}

// inoFor returns the inode number that clients see.
func (t *Tree) inoFor(dev, ino uint64) uint64 {
	if dev == t.root.key.dev {
		if ino == t.root.key.ino {
			return RootID
		}
		if ino > reservedInos && ino <= largestBackingIno {
			return ino
		}
	}
	// The finalizer of splitmix64: every input bit affects every output bit.
	h := ino ^ dev*0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return madeUpInoStart + (h^h>>31)%madeUpInoStart
}

// seenLocked records that n was found in place p.
func (t *Tree) seenLocked(n *node, p place, st *unix.Statx_t, generation uint64) {
	if n.place == p || n == t.root {
		return
	}
	if st.Nlink > 1 && !n.directory() {
		if !t.links[n][p] {
			p.parent.children++
			if t.links[n] == nil {
				t.links[n] = make(map[place]bool)
			}
			t.links[n][p] = true
			t.takeRoomLocked(n, linkBytes+len(p.name))
			t.notePlaceLocked(recordLink, n, p)
		}
		return
	}
	if t.renames.Load() != generation {
		return
	}
	t.moveLocked(n, p)
}

// moveLocked makes p the place of n.
func (t *Tree) moveLocked(n *node, p place) {
	p.parent.children++
	old := n.place
	n.place = p
	t.takeNameRoomLocked(n, old.name)
	t.notePlaceLocked(recordPlace, n, p)
	t.keepAboveLocked(n)
	t.leftLocked(old.parent)
}

// leftLocked drops one place from directory d.
func (t *Tree) leftLocked(d *node) {
	d.children--
	invariants.Check(d.children >= 0, "node %d has %d children", d.id, d.children)
	t.dropLocked(d)
}

// gone records that place p no longer leads to n. last reports whether it was the
// inode's last name.
func (t *Tree) gone(n *node, p place, last bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.unplaceLocked(n, p)
	if last {
		// The inode number may be reused at once, by an inode that is another node.
		t.byIdentity.take(n.key, n)
		t.noteMarkLocked(recordGone, n)
	}
}

// unplaceLocked removes p from the places of n. A node keeps its only known place:
// finding another inode there shows that the place is stale.
func (t *Tree) unplaceLocked(n *node, p place) {
	others := t.links[n]
	if others[p] {
		t.dropLinkLocked(n, p)
		t.leftLocked(p.parent)
		return
	}
	if n.place == p {
		for other := range others {
			n.place = other
			t.takeRoomLocked(n, len(other.name)-len(p.name))
			t.notePlaceLocked(recordPlace, n, other)
			t.dropLinkLocked(n, other)
			t.leftLocked(p.parent)
			return
		}
	}
}

// dropLinkLocked removes a place from links.
func (t *Tree) dropLinkLocked(n *node, p place) {
	delete(t.links[n], p)
	t.takeRoomLocked(n, -linkBytes-len(p.name))
	t.notePlaceLocked(recordUnlink, n, p)
	if len(t.links[n]) == 0 {
		delete(t.links, n)
	}
}

// moved records a rename of n.
func (t *Tree) moved(n *node, from, to place) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n.place == from {
		t.moveLocked(n, to)
		return
	}
	others := t.links[n]
	if others[from] {
		if !others[to] {
			to.parent.children++
			others[to] = true
			t.takeRoomLocked(n, linkBytes+len(to.name))
			t.notePlaceLocked(recordLink, n, to)
		}
		delete(others, from)
		t.takeRoomLocked(n, -linkBytes-len(from.name))
		t.notePlaceLocked(recordUnlink, n, from)
		t.leftLocked(from.parent)
		return
	}
	if len(others) == 0 {
		t.moveLocked(n, to)
	}
}

// Forget drops count references of the kernel to a node. It makes no system call on the data directory. If it
// returns true, the caller calls CloseForgotten with that owner in time.
func (t *Tree) Forget(id, count uint64) (owner uint32, toClose bool) {
	n, ok := t.byID.get(id)
	if !ok || n == t.root {
		return 0, false
	}
	t.mu.Lock()
	invariants.Check(count <= n.lookups, "the kernel forgets %d lookups of %d of node %d", count, n.lookups, n.id)
	n.lookups -= min(count, n.lookups)
	t.noteRefsLocked(n)
	before := len(t.closing)
	t.dropLocked(n)
	if toClose = len(t.closing) > before; toClose {
		owner = t.closing[before].uid
	}
	t.mu.Unlock()
	t.commitMany()
	return owner, toClose
}

// dropLocked removes n if nothing refers to it, and then the directories above that only
// n kept alive.
func (t *Tree) dropLocked(n *node) {
	for n != t.root && n.lookups == 0 && n.children == 0 {
		if !t.byID.take(n.id, n) {
			return
		}
		n.checkDropLocked()
		t.dischargeLocked(n)
		t.byIdentity.take(n.key, n)
		t.byIno.take(n.ino, n)
		if o, ok := t.orphans[n]; ok {
			delete(t.orphans, n)
			t.closing = append(t.closing, o)
		}
		t.forgotten.note()
		for p := range t.links[n] {
			p.parent.children--
			invariants.Check(p.parent.children >= 0, "node %d has %d children", p.parent.id, p.parent.children)
			if p.parent != n.parent {
				t.dropLocked(p.parent)
			}
		}
		delete(t.links, n)
		n = n.parent
		n.children--
		invariants.Check(n.children >= 0, "node %d has %d children", n.id, n.children)
	}
}

// Hold adds a reference to a node as a lookup does. Forget drops it.
func (t *Tree) Hold(id uint64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if n, ok := t.byID.get(id); ok && n != t.root {
		n.lookups++
		t.noteRefsLocked(n)
	}
}

// Nodes returns the number of nodes that the kernel knows.
func (t *Tree) Nodes() int { return int(t.nodes.Load()) }

// OnDataDevice reports whether a node is on the data directory's own device rather than on one that is mounted below it.
func (t *Tree) OnDataDevice(id uint64) bool {
	n, ok := t.byID.get(id)
	return ok && n.key.dev == t.root.key.dev
}
