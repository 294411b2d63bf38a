package lookups

import (
	"strings"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/fs/rows"
	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

// mostRoots bounds the directories that are remembered: users make them, see rows.
const mostRoots = 256

// roots are directories below which engines have files. Engines that spread blocks over directories by the first digits of a
// key meet a directory that is not there before they get to the name of the file.
type roots struct {
	of    *rows.Table[string, *root]
	marks *rows.Table[string, *marked]
}

// uses counts how often a directory was asked about.
type uses struct {
	rows.Held
	times atomic.Int64
}

// Total implements rows.Row.
func (u *uses) Total() int64 { return u.times.Load() }

// root is whose files are in a directory: the last ones that were seen. Guarded by Counter.mu.
type root struct {
	uses
	owner classify.Owner
	model string
}

// Add implements rows.Row: what is known of a directory does not count for others.
func (*root) Add(*root) {}

// marked is what is in a directory. Guarded by Counter.mu.
type marked struct {
	uses
	marks classify.Marks
}

// Add implements rows.Row.
func (*marked) Add(*marked) {}

func newRoots() roots {
	return roots{rows.New[string](mostRoots, func() *root { return new(root) }), rows.New[string](mostRoots, func() *marked { return new(marked) })}
}

// note takes in whose a file is, which a user has named.
func (r *roots) note(f classify.File, uid uint32) {
	in := r.of.Of(uid, f.Root)
	in.owner, in.model = f.Owner, f.Model
	in.times.Add(1)
}

// spreadBelow returns the root below which a path is that of a directory by which blocks are spread.
func (r *roots) spreadBelow(path string) (*root, bool) {
	for range 2 {
		dir, name := cut(path)
		if !spreads(name) {
			return nil, false
		}
		if in, ok := r.of.Known(dir); ok {
			in.times.Add(1)
			return in, true
		}
		path = dir
	}
	return nil, false
}

// spreads reports whether a directory's name is the first digits of a key or a hash.
func spreads(name string) bool {
	const mostDigits = 5
	return name != "" && len(name) <= mostDigits && strings.Trim(name, "-0123456789abcdef") == ""
}

// cut separates the last name of a path from the ones before.
func cut(path string) (dir, name string) {
	if i := strings.LastIndexByte(path, '/'); i >= 0 {
		return path[:i], path[i+1:]
	}
	return "", path
}

// isMark reports whether a name says something about its directory.
func isMark(path string) bool {
	_, name := cut(path)
	return strings.HasPrefix(name, ".") && classify.MarkOf(name) != 0
}

// marksOf returns what is known to be in a directory.
func (r *roots) marksOf(dir string) classify.Marks {
	in, ok := r.marks.Known(dir)
	if !ok {
		return 0
	}
	in.times.Add(1)
	return in.marks
}

// noteMark takes in what a name says about its directory, and the user whose it is. The caller holds mu.
func (c *Counter) noteMark(path string, uid uint32) {
	if !isMark(path) {
		return
	}
	dir, name := cut(path)
	in, mark := c.roots.marks.Of(uid, dir), classify.MarkOf(name)
	if in == c.roots.marks.Other() {
		return
	}
	in.times.Add(1)
	in.marks |= mark
	if mark == classify.DotTemp {
		c.roots.note(classify.File{Owner: classify.Ds3fs, Root: dir}, uid)
	}
}

// classify says what the file at a path is, which a user has named, with what is known of the directories around it. The caller holds mu.
func (c *Counter) classify(path string, uid uint32) classify.File {
	here, _ := cut(path)
	above, _ := cut(here)
	f := classify.Classify(path, classify.Context{Here: c.roots.marksOf(here), Above: c.roots.marksOf(above)})
	if isBlock(f) {
		c.roots.note(f, uid)
	}
	return f
}
