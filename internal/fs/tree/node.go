package tree

import (
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// RootID is the node number and the inode number of the root.
const RootID = 1

const (
	// Larger backing inode numbers, and those of other devices, are replaced by
	// numbers from madeUpInoStart to its double: a hash, so that an inode has the
	// same one whenever it is seen.
	largestBackingIno = 1<<52 - 1
	madeUpInoStart    = 1 << 56
	// Inode numbers up to here have meanings of their own in 3FS.
	reservedInos = 2
)

// identity tells an inode from every other one, also from a later one with the
// same number.
type identity struct {
	dev, ino uint64
	birth    int64 // nanoseconds, 0 where the file system keeps none
}

func (k identity) hash() uint64 { return k.ino ^ k.dev<<20 ^ uint64(k.birth) }

func identityOf(st *unix.Statx_t) identity {
	k := identity{dev: uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), ino: st.Ino}
	if st.Mask&unix.STATX_BTIME != 0 {
		k.birth = st.Btime.Sec*1e9 + int64(st.Btime.Nsec)
	}
	return k
}

// place is a directory entry: where a node is.
type place struct {
	parent *node
	name   string
}

// node is an inode the kernel knows. A million of them is normal: it is small,
// and what only some need is in side tables.
type node struct {
	id, ino uint64
	key     identity
	kind    uint32 // S_IFMT bits

	// Guarded by Stage.treeMu. parent is nil for the root only.
	place
	lookups  uint64 // references the kernel counts
	children int    // places in this directory: places of others hold it

	open atomic.Pointer[openFile]

	// handed counts the times that the kernel got attributes to keep; told is how
	// many of them it was told to forget. Where they are equal it keeps none, but
	// expired ones. They wrap.
	handed, told atomic.Uint32
	// hotUntil is until when ring writes forbid giving it any, in nanoseconds on
	// the stage's clock.
	hotUntil atomic.Int64
}

func (n *node) regular() bool   { return n.kind == unix.S_IFREG }
func (n *node) directory() bool { return n.kind == unix.S_IFDIR }

// node returns what the kernel knows as id.
func (s *Stage) node(id uint64) (*node, error) {
	if n, ok := s.byID.get(id); ok {
		return n, nil
	}
	return nil, unix.ESTALE
}

// remember returns the node for an inode seen at at, counting one reference of
// the kernel. generation is Stage.renames from before it was seen: an older
// sight does not move a node that was renamed since.
func (s *Stage) remember(at place, st *unix.Statx_t, generation uint64) *node {
	key := identityOf(st)
	kind := uint32(st.Mode) & unix.S_IFMT
	s.treeMu.Lock()
	defer s.treeMu.Unlock()
	n, ok := s.byIdentity.get(key)
	if ok && n.kind == kind {
		s.seenLocked(n, at, st, generation)
		n.lookups++
		return n
	}
	n = &node{id: s.nextID.Add(1), key: key, kind: kind, place: at, lookups: 1}
	n.ino = s.inoFor(key.dev, key.ino)
	for n.ino >= madeUpInoStart {
		other, taken := s.byIno.get(n.ino)
		if !taken || other.key.dev == key.dev && other.key.ino == key.ino {
			break
		}
		n.ino++ // two of one hash: rings must not take one for the other
	}
	at.parent.children++
	s.byIdentity.put(key, n)
	s.byIno.put(n.ino, n)
	s.byID.put(n.id, n)
	return n
}

// inoFor is the inode number that clients see.
func (s *Stage) inoFor(dev, ino uint64) uint64 {
	if dev == s.root.key.dev {
		if ino == s.root.key.ino {
			return RootID
		}
		if ino > reservedInos && ino <= largestBackingIno {
			return ino
		}
	}
	// The finalizer of splitmix64: every bit counts in every other.
	h := ino ^ dev*0x9e3779b97f4a7c15
	h = (h ^ h>>30) * 0xbf58476d1ce4e5b9
	h = (h ^ h>>27) * 0x94d049bb133111eb
	return madeUpInoStart + (h^h>>31)%madeUpInoStart
}

// seenLocked notes that n was found at at.
func (s *Stage) seenLocked(n *node, at place, st *unix.Statx_t, generation uint64) {
	if n.place == at || n == s.root {
		return
	}
	if st.Nlink > 1 && !n.directory() {
		if !s.links[n][at] {
			at.parent.children++
			if s.links[n] == nil {
				s.links[n] = make(map[place]bool)
			}
			s.links[n][at] = true
		}
		return
	}
	if s.renames.Load() != generation {
		return
	}
	s.moveLocked(n, at)
}

// moveLocked makes at the place of n.
func (s *Stage) moveLocked(n *node, at place) {
	at.parent.children++
	old := n.parent
	n.place = at
	s.leftLocked(old)
}

// leftLocked drops one place from directory d.
func (s *Stage) leftLocked(d *node) {
	d.children--
	s.dropLocked(d)
}

// gone notes that the entry at at does not lead to n any more. last says that
// it was the inode's last name.
func (s *Stage) gone(n *node, at place, last bool) {
	s.treeMu.Lock()
	defer s.treeMu.Unlock()
	s.unplaceLocked(n, at)
	if last {
		// An inode number may return at once: the next owner is another node.
		s.byIdentity.take(n.key, n)
	}
}

// unplaceLocked removes at from the places of n. A node whose only known place
// goes keeps it: finding another inode there tells that it is stale.
func (s *Stage) unplaceLocked(n *node, at place) {
	others := s.links[n]
	if others[at] {
		s.dropLinkLocked(n, at)
		s.leftLocked(at.parent)
		return
	}
	if n.place == at {
		for other := range others {
			n.place = other
			s.dropLinkLocked(n, other)
			s.leftLocked(at.parent)
			return
		}
	}
}

// dropLinkLocked takes a place from the further names of n.
func (s *Stage) dropLinkLocked(n *node, at place) {
	delete(s.links[n], at)
	if len(s.links[n]) == 0 {
		delete(s.links, n)
	}
}

// moved notes a rename of n.
func (s *Stage) moved(n *node, from, to place) {
	s.treeMu.Lock()
	defer s.treeMu.Unlock()
	if n.place == from {
		s.moveLocked(n, to)
		return
	}
	others := s.links[n]
	if others[from] {
		if !others[to] {
			to.parent.children++
			others[to] = true
		}
		delete(others, from)
		s.leftLocked(from.parent)
		return
	}
	if len(others) == 0 {
		s.moveLocked(n, to)
	}
}

// Forget takes back count references of the kernel to a node.
func (s *Stage) Forget(id, count uint64) {
	n, ok := s.byID.get(id)
	if !ok || n == s.root {
		return
	}
	s.treeMu.Lock()
	n.lookups -= min(count, n.lookups)
	s.dropLocked(n)
	idle := len(s.closing) == 0
	s.treeMu.Unlock()
	if !idle {
		s.closeForgotten()
	}
}

// dropLocked removes n, and directories above it that only it held, when
// nothing refers to it.
func (s *Stage) dropLocked(n *node) {
	for n != s.root && n.lookups == 0 && n.children == 0 {
		if !s.byID.take(n.id, n) {
			return
		}
		s.byIdentity.take(n.key, n)
		s.byIno.take(n.ino, n)
		if fd, ok := s.orphans[n]; ok {
			delete(s.orphans, n)
			s.closing = append(s.closing, fd)
		}
		s.forgotten.note()
		for at := range s.links[n] {
			at.parent.children--
			if at.parent != n.parent {
				s.dropLocked(at.parent)
			}
		}
		delete(s.links, n)
		n = n.parent
		n.children--
	}
}

// Nodes returns how many nodes the kernel makes the stage remember.
func (s *Stage) Nodes() int { return s.byID.len() }
