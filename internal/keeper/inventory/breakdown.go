package inventory

import (
	"cmp"
	"container/heap"
	"slices"
)

// Branch is a directory of a Breakdown.
type Branch struct {
	Path         string // below the data directory, "." for that itself
	Parent       int    // its number among the branches; -1: it is the top
	Bytes, Files int64
	Limit        int64 // its own, or Unlimited
	More         int   // directories directly below it that were left out
}

// Share is what a group takes of what is below the top of a Breakdown.
type Share struct {
	Total
	// Branches are those at level 1 that have files of it, the largest first, and the top where files are directly in that.
	Branches []Part
}

// Part is what a directory has of a group.
type Part struct {
	Path         string
	Bytes, Files int64
}

// mostParts bounds the parts of a share.
const mostParts = 20

// Breakdown returns a directory, named by its path, and the largest of those at most depth levels below it, each after
// its parent; and the largest groups there. It gives most of each at most, and looks at no disk. ok is false for a directory of which
// nothing is known.
func (v *Inventory) Breakdown(path string, depth, most int) (branches []Branch, groups []Share, ok bool) {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	top := v.dirs.namedLocked(path)
	if top == nil {
		return nil, nil, false
	}
	chosen := v.dirs.largestLocked(top, depth, most)
	index := make(map[*Directory]int, len(chosen))
	for _, c := range chosen {
		at, ok := c.dir.pathLocked()
		if !ok {
			continue
		}
		b := Branch{Path: at, Parent: -1, Bytes: c.bytes, Files: c.dir.Files(), Limit: c.dir.Limit()}
		if c.level < depth {
			b.More = c.dir.children
		}
		if c.level > 0 {
			b.Parent = index[c.dir.parent]
			branches[b.Parent].More--
		}
		index[c.dir] = len(branches)
		branches = append(branches, b)
	}
	return branches, v.dirs.sharesLocked(top, most), true
}

// namedLocked returns the directory with a path, nil if there is none.
func (ds *directories) namedLocked(path string) *Directory {
	if path == "." {
		return ds.root
	}
	for _, d := range ds.byID {
		if d == nil || d.parent == nil || len(path) < len(d.name) || path[len(path)-len(d.name):] != d.name {
			continue
		}
		if at, ok := d.pathLocked(); ok && at == path {
			return d
		}
	}
	return nil
}

// levelLocked returns how many levels d is below top, and false where that is more than most, or d is not below.
func (d *Directory) levelLocked(top *Directory, most int) (level int, ok bool) {
	for up := d; up != nil && level <= most; up = up.parent {
		if up == top {
			return level, true
		}
		level++
	}
	return 0, false
}

// candidate is a directory that may be one of the largest.
type candidate struct {
	dir   *Directory
	level int
	bytes int64 // as they were: totals change meanwhile
}

// before reports whether a comes before b among the largest. A parent comes before its children, however little they are.
func (a candidate) before(b candidate) bool {
	return cmp.Or(cmp.Compare(b.bytes, a.bytes), cmp.Compare(a.level, b.level), cmp.Compare(a.dir.id, b.dir.id)) < 0
}

// smallest is a heap with the least of the largest on top.
type smallest []candidate

func (s smallest) Len() int           { return len(s) }
func (s smallest) Less(i, j int) bool { return s[j].before(s[i]) }
func (s smallest) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *smallest) Push(c any)        { *s = append(*s, c.(candidate)) }
func (s *smallest) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}

// largestLocked returns the top and the largest directories below it, a parent before its children.
func (ds *directories) largestLocked(top *Directory, depth, most int) []candidate {
	var found smallest
	for _, d := range ds.byID {
		if d == nil || d.gone || d == top {
			continue
		}
		level, ok := d.levelLocked(top, depth)
		if !ok {
			continue
		}
		c := candidate{d, level, d.Bytes()}
		switch {
		case len(found) < most:
			heap.Push(&found, c)
		case c.before(found[0]):
			found[0] = c
			heap.Fix(&found, 0)
		}
	}
	slices.SortFunc(found, func(a, b candidate) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	// Totals change while they are read, so a child may seem to be larger than its parent, and be there alone.
	kept, have := []candidate{{top, 0, top.Bytes()}}, map[*Directory]bool{top: true}
	slices.SortStableFunc(found, func(a, b candidate) int { return a.level - b.level })
	for _, c := range found {
		if have[c.dir.parent] {
			have[c.dir] = true
			kept = append(kept, c)
		}
	}
	return kept
}

// sharesLocked returns the largest groups below a directory, and where they are.
func (ds *directories) sharesLocked(top *Directory, most int) []Share {
	ps := &ds.places
	sums := make([]Total, len(ps.groups))
	for _, p := range ps.all {
		if p != nil && p.dir.belowLocked(top) {
			sums[p.group].Bytes += p.bytes.Load()
			sums[p.group].Files += p.files.Load()
		}
	}
	var numbers []int
	for number := range sums {
		if sums[number].Group = ps.groups[number]; sums[number].Files > 0 && sums[number].Group != (Group{}) {
			numbers = append(numbers, number)
		}
	}
	slices.SortFunc(numbers, func(a, b int) int {
		return cmp.Or(cmp.Compare(sums[b].Bytes, sums[a].Bytes), cmp.Compare(sums[b].Files, sums[a].Files), cmp.Compare(a, b))
	})
	numbers = numbers[:min(most, len(numbers))]
	parts := make(map[int]map[*Directory]*Part, len(numbers))
	for _, number := range numbers {
		parts[number] = map[*Directory]*Part{}
	}
	for _, p := range ps.all {
		if p == nil || parts[int(p.group)] == nil || !p.dir.belowLocked(top) {
			continue
		}
		in := parts[int(p.group)]
		branch := p.dir
		for branch != top && branch.parent != top {
			branch = branch.parent
		}
		if in[branch] == nil {
			in[branch] = &Part{}
		}
		in[branch].Bytes += p.bytes.Load()
		in[branch].Files += p.files.Load()
	}
	shares := make([]Share, 0, len(numbers))
	for _, number := range numbers {
		share := Share{Total: sums[number]}
		for branch, part := range parts[number] {
			if at, ok := branch.pathLocked(); ok && part.Files > 0 {
				part.Path = at
				share.Branches = append(share.Branches, *part)
			}
		}
		slices.SortFunc(share.Branches, func(a, b Part) int {
			return cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(a.Path, b.Path))
		})
		share.Branches = share.Branches[:min(mostParts, len(share.Branches))]
		shares = append(shares, share)
	}
	return shares
}
