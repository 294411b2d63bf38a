package inventory

import (
	"container/heap"
	"slices"
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

// compare orders candidates: temporary files first, then by rank.
func (c *Candidate) compare(o *Candidate) int {
	if a, b := c.Kind == Temporary, o.Kind == Temporary; a != b {
		if a {
			return -1
		}
		return 1
	}
	for _, d := range [...][2]uint64{
		{uint64(c.Rank) ^ 1<<63, uint64(o.Rank) ^ 1<<63}, {c.Key.Dev, o.Key.Dev}, {c.Key.Ino, o.Key.Ino},
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

// Candidates returns the first candidates below top, at most so many, that come after the
// given one; nil is before all. rank says when a file's turn is: the lowest goes first. It
// must not call back. Files of kind Kept are none, nor are those that no scan has placed.
func (v *Inventory) Candidates(top *Directory, after *Candidate, most int, rank func(lastUse uint32, uses uint8) int64) []Candidate {
	v.dirs.mu.RLock()
	dirs := make([]*Directory, len(v.dirs.byID))
	for id, d := range v.dirs.byID {
		if d != nil && d.belowLocked(top) {
			dirs[id] = d
		}
	}
	v.dirs.mu.RUnlock()
	var found last
	v.tables(func(t *table) {
		for i := range t.shards {
			s := &t.shards[i]
			s.mu.Lock()
			for ino, f := range s.files {
				if f.flags&(inUse|nameless|unplaced) != 0 || f.kind() == Kept || int(f.dir) >= len(dirs) || dirs[f.dir] == nil {
					continue
				}
				c := Candidate{
					Key: Key{t.dev, ino}, Dir: dirs[f.dir], Bytes: f.bytes(), LastUse: f.lastUse, Uses: f.uses,
					Kind: f.kind(), Rank: rank(f.lastUse, f.uses),
				}
				switch {
				case after != nil && c.compare(after) <= 0:
				case len(found) < most:
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
	return File{Dir: v.numbered(f.dir), Bytes: f.bytes(), LastUse: f.lastUse, Uses: f.uses, Kind: f.kind(), InUse: f.is(inUse)}, true
}
