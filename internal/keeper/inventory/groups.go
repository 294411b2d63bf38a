package inventory

import (
	"slices"
	"strings"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// Group is whose a file is, as its name tells. The zero Group is that of files without a name.
type Group struct{ Owner, Model string }

// Total is what the files of a group take.
type Total struct {
	Group
	Bytes, Files int64
}

// mostGroups bounds the groups that are told apart: names are what clients make them. What is beyond counts as its
// owner's, without a model.
const mostGroups = 10000

// place is what a file is charged to: its directory, and there its group. A record has room for one number, and most
// directories have files of few groups.
type place struct {
	dir          *Directory
	group        uint32
	bytes, files atomic.Int64
}

// places are the pairs of a directory and a group that have, or had, files. Guarded by directories.mu, but for the
// counters.
type places struct {
	all  []*place // by number; nil where one was dropped
	free []uint32

	groups     []Group // by number
	holders    []int32 // places of each group; of one without any, the number is free
	freeGroups []uint32
	numbers    map[Group]uint32

	left   atomic.Int64 // files that have left their place
	tidied int64        // left, when those without files were dropped last
}

// find returns the place of a group in a directory, if there is one.
func (ps *places) find(d *Directory, g Group) (id uint32, ok bool) {
	number, ok := ps.numbers[g]
	if !ok {
		if g.Model == "" || !ps.full() || ps.tidies() {
			return 0, false
		}
		return ps.find(d, Group{Owner: g.Owner})
	}
	i, ok := ps.search(d, number)
	if !ok {
		return 0, false
	}
	return d.places[i], true
}

func (ps *places) search(d *Directory, group uint32) (int, bool) {
	return slices.BinarySearchFunc(d.places, group, func(id, group uint32) int { return int(ps.all[id].group) - int(group) })
}

func (ps *places) full() bool { return len(ps.numbers) >= mostGroups }

// tidies reports whether it is worth while to look for places without files: that costs a look at all, and each of them
// has been left by a file at least.
func (ps *places) tidies() bool {
	return ps.left.Load()-ps.tidied >= int64(max(mostGroups/4, len(ps.all)/2))
}

// make returns the place of a group in a directory. directories.mu is held for writing.
func (ps *places) make(d *Directory, g Group) uint32 {
	if ps.tidies() {
		ps.tidy()
	}
	number := ps.number(g)
	i, ok := ps.search(d, number)
	if ok {
		return d.places[i]
	}
	p := &place{dir: d, group: number}
	ps.holders[number]++
	var id uint32
	if n := len(ps.free); n > 0 {
		id, ps.free = ps.free[n-1], ps.free[:n-1]
		ps.all[id] = p
	} else {
		id = uint32(len(ps.all))
		ps.all = append(ps.all, p)
	}
	d.places = slices.Insert(d.places, i, id)
	return id
}

// number returns the number of a group, or of its owner's without a model if there are too many.
func (ps *places) number(g Group) uint32 {
	if number, ok := ps.numbers[g]; ok {
		return number
	}
	if g.Model != "" && ps.full() {
		return ps.number(Group{Owner: g.Owner})
	}
	g = Group{strings.Clone(g.Owner), strings.Clone(g.Model)} // they are parts of a path
	var number uint32
	if n := len(ps.freeGroups); n > 0 {
		number, ps.freeGroups = ps.freeGroups[n-1], ps.freeGroups[:n-1]
		ps.groups[number] = g
	} else {
		number = uint32(len(ps.groups))
		ps.groups, ps.holders = append(ps.groups, g), append(ps.holders, 0)
	}
	ps.numbers[g] = number
	return number
}

// tidy drops the places that have no files, and gives back the memory of their numbers where that is at the end.
func (ps *places) tidy() {
	ps.tidied = ps.left.Load()
	for _, p := range ps.all {
		if p != nil && p.files.Load() == 0 {
			ps.tidyIn(p.dir)
		}
	}
	for n := len(ps.all); n > 0 && ps.all[n-1] == nil; n-- {
		ps.all = ps.all[:n-1]
	}
	ps.all = slices.Clone(ps.all)
	ps.free = slices.Clone(slices.DeleteFunc(ps.free, func(id uint32) bool { return int(id) >= len(ps.all) }))
}

// tidyIn drops those of one directory.
func (ps *places) tidyIn(d *Directory) {
	d.places = slices.Clone(slices.DeleteFunc(d.places, func(id uint32) bool {
		if ps.all[id].files.Load() > 0 {
			return false
		}
		ps.drop(id)
		return true
	}))
}

// drop frees the number of a place.
func (ps *places) drop(id uint32) {
	p := ps.all[id]
	invariants.Check(p.files.Load() == 0 && p.bytes.Load() == 0, "a place with %d files of %d bytes is dropped", p.files.Load(), p.bytes.Load())
	ps.all[id] = nil
	ps.free = append(ps.free, id)
	if ps.holders[p.group]--; ps.holders[p.group] == 0 {
		delete(ps.numbers, ps.groups[p.group])
		ps.groups[p.group] = Group{}
		ps.freeGroups = append(ps.freeGroups, p.group)
	}
}

// at calls fn with the number of the place of a group in a directory, or in the root if that has no record any more, and
// with directories.mu held.
func (ds *directories) at(d *Directory, g Group, fn func(id uint32)) {
	ds.mu.RLock()
	id, ok := ds.places.find(ds.orRootLocked(d), g)
	if ok {
		fn(id)
	}
	ds.mu.RUnlock()
	if ok {
		return
	}
	ds.mu.Lock()
	defer ds.mu.Unlock()
	fn(ds.places.make(ds.orRootLocked(d), g))
}

func (ds *directories) orRootLocked(d *Directory) *Directory {
	if ds.byID[d.id] != d {
		return ds.root
	}
	return d
}

// groupOf returns the group that a file is charged to.
func (v *Inventory) groupOf(f *file) Group {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	return v.dirs.places.groups[v.dirs.places.all[f.place].group]
}

// Groups returns what the files below a directory take by group, in no order. A file counts once, under one of its
// names. Of a directory that was renamed, files count as what they were until the next scan.
func (v *Inventory) Groups(top *Directory) []Total {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	ps := &v.dirs.places
	sums := make([]Total, len(ps.groups))
	for _, p := range ps.all {
		if p != nil && (top == v.dirs.root || p.dir.belowLocked(top)) {
			sums[p.group].Bytes += p.bytes.Load()
			sums[p.group].Files += p.files.Load()
		}
	}
	var all []Total
	for number, sum := range sums {
		if sum.Group = ps.groups[number]; sum.Files > 0 && sum.Group != (Group{}) {
			all = append(all, sum)
		}
	}
	return all
}
