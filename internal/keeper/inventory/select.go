package inventory

import (
	"container/heap"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Candidate is a file that is not in use and may go.
type Candidate struct {
	Key     Key
	Dir     *Directory
	Bytes   int64
	LastUse uint32 // on the inventory's clock
	Uses    uint8
	Kind    Kind
	Rank    int64
}

// compare orders candidates: temporary files first, then by rank, and of one rank the one that was
// probably made last.
func (c *Candidate) compare(o *Candidate) int {
	if a, b := c.Kind == Temporary, o.Kind == Temporary; a != b {
		if a {
			return -1
		}
		return 1
	}
	for _, d := range [...][2]uint64{
		{uint64(c.Rank) ^ 1<<63, uint64(o.Rank) ^ 1<<63}, {c.Key.Dev, o.Key.Dev}, {o.Key.Ino, c.Key.Ino},
	} {
		if d[0] != d[1] {
			if d[0] < d[1] {
				return -1
			}
			return 1
		}
	}
	return 0
}

// last is a heap of candidates with the last one on top.
type last []Candidate

func (l last) Len() int           { return len(l) }
func (l last) Less(i, j int) bool { return l[i].compare(&l[j]) > 0 }
func (l last) Swap(i, j int)      { l[i], l[j] = l[j], l[i] }
func (l *last) Push(c any)        { *l = append(*l, c.(Candidate)) }
func (l *last) Pop() any {
	c := (*l)[len(*l)-1]
	*l = (*l)[:len(*l)-1]
	return c
}

// Query says which candidates are wanted.
type Query struct {
	Top     *Directory // they are below it
	After   *Candidate // they come after this one; nil: from the first one
	Most    int        // how many at most
	Unknown bool       // those of kind Unknown, too

	// Rank says when a file's turn is: the lowest goes first. It must not call back.
	Rank func(lastUse uint32, uses uint8) int64

	// Busy is called for files that are no candidates only because they are in use. It must not call
	// back, and may be nil.
	Busy func(Key)
}

// Candidates returns the first candidates that a query asks for, in order. Files of kind
// Kept are none, nor are those that no scan has placed.
func (v *Inventory) Candidates(q Query) []Candidate {
	v.dirs.mu.RLock()
	dirs := make([]*Directory, len(v.dirs.places.all)) // by place
	for id, p := range v.dirs.places.all {
		if p != nil && p.dir.belowLocked(q.Top) {
			dirs[id] = p.dir
		}
	}
	v.dirs.mu.RUnlock()
	var found last
	v.tables(func(t *table) {
		for i := range t.shards {
			s := &t.shards[i]
			s.mu.Lock()
			for ino, f := range s.files {
				if f.flags&(nameless|unplaced) != 0 || f.kind() == Kept || f.kind() == Unknown && !q.Unknown || int(f.place) >= len(dirs) || dirs[f.place] == nil {
					continue
				}
				if f.is(inUse) {
					if q.Busy != nil {
						q.Busy(Key{t.dev, ino})
					}
					continue
				}
				c := Candidate{
					Key: Key{t.dev, ino}, Dir: dirs[f.place], Bytes: f.bytes(), LastUse: f.lastUse, Uses: f.uses,
					Kind: f.kind(), Rank: q.Rank(f.lastUse, f.uses),
				}
				switch {
				case q.After != nil && c.compare(q.After) <= 0:
				case len(found) < q.Most:
					heap.Push(&found, c)
				case c.compare(&found[0]) < 0:
					found[0] = c
					heap.Fix(&found, 0)
				}
			}
			s.mu.Unlock()
		}
	})
	slices.SortFunc(found, func(a, b Candidate) int { return a.compare(&b) })
	return found
}

// File is what is known of a file.
type File struct {
	Dir     *Directory
	Bytes   int64
	LastUse uint32 // on the inventory's clock
	Uses    uint8
	Kind    Kind
	InUse   bool
	Several bool // it has several names
}

// File returns what is known of a file.
func (v *Inventory) File(k Key) (File, bool) {
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[k.Ino]
	if !ok {
		return File{}, false
	}
	return File{Dir: v.homeOf(&f), Bytes: f.bytes(), LastUse: f.lastUse, Uses: f.uses, Kind: f.kind(), InUse: f.is(inUse), Several: f.is(several)}, true
}

// Tag returns the tag of the name that a file was found under last.
func (v *Inventory) Tag(k Key) (tag uint8, ok bool) {
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[k.Ino]
	return f.tag, ok
}

// TagOf returns the tag of a name: few have the same.
func TagOf(entry string) uint8 { return tagOf(entry) }

// Forget drops the record of a file that is not in use, and was not found in d although d
// was read to its end while the file changed no more often than that.
func (v *Inventory) Forget(k Key, d *Directory, changes uint64) {
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.files[k.Ino]; ok && s.changes == changes && !f.is(inUse) && !f.is(several) && v.homeOf(&f) == d {
		s.changes++
		v.dropLocked(s, k.Ino, f)
	}
}

// Changes returns a number for Forget.
func (v *Inventory) Changes(k Key) uint64 {
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.changes
}

// Below returns the directories that there are below one, and itself.
func (v *Inventory) Below(top *Directory) []*Directory {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	var all []*Directory
	for _, d := range v.dirs.byID {
		if d != nil && d.belowLocked(top) {
			all = append(all, d)
		}
	}
	return all
}

// Room returns the least limit of a directory and of those above it, and the least that is
// left for files of one; Unlimited where there is none. A directory without a record has the root's.
func (v *Inventory) Room(dir Key) (limit, left int64) {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	d := v.dirs.byKey[dir]
	if d == nil {
		d = v.dirs.root
	}
	limit, left = Unlimited, Unlimited
	for up := d; up != nil; up = up.parent {
		if own := up.Limit(); own != Unlimited {
			limit, left = min(limit, own), min(left, max(own-up.ForEntries()-up.Claimed(), 0))
		}
	}
	return limit, left
}

// Find returns the record of the directory at a path below the root. It makes one for a
// directory that no scan or event has named; Look then reads it.
func (v *Inventory) Find(path string) (*Directory, error) {
	d := v.dirs.root
	if path == "." {
		return d, nil
	}
	for part := range strings.SplitSeq(path, "/") {
		fd, err := v.open(d)
		if err != nil {
			return nil, err
		}
		st, err := statAt(fd, part)
		unix.Close(fd)
		switch {
		case err != nil:
			return nil, err
		case part == "" || part == "." || part == "..":
			return nil, unix.EINVAL
		case st.Mode&unix.S_IFMT != unix.S_IFDIR:
			return nil, unix.ENOTDIR
		case keyOf(&st).Dev != v.key.Dev:
			return nil, unix.EXDEV
		case d == v.dirs.root && part == v.Skip:
			return nil, unix.EPERM
		}
		v.dirs.mu.Lock()
		next, ok := v.dirs.byKey[keyOf(&st)]
		if !ok && v.dirs.byID[d.id] == d {
			next = v.dirs.addLocked(keyOf(&st), d, part)
			v.dirs.settleLocked(next, 0, int64(st.Blocks))
		}
		v.dirs.mu.Unlock()
		if next == nil {
			return nil, unix.ENOENT
		}
		if !ok {
			v.lookAt(d, part)
		}
		d = next
	}
	return d, nil
}

// Pressed reports whether a directory above a file, or the directory itself if the key
// is of one, claims more than that part of its limit.
func (v *Inventory) Pressed(k Key, part float64) bool {
	v.dirs.mu.RLock()
	d := v.dirs.byKey[k]
	v.dirs.mu.RUnlock()
	if d == nil {
		d = v.dirs.root
		s := v.shard(k)
		s.mu.Lock()
		if f, ok := s.files[k.Ino]; ok {
			d = v.homeOf(&f)
		}
		s.mu.Unlock()
	}
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	for up := d; up != nil; up = up.parent {
		if limit := up.Limit(); limit != Unlimited && float64(up.Claimed()) > part*float64(limit) {
			return true
		}
	}
	return false
}
