package lookups

import (
	"strings"

	"github.com/kv3fs/kv3fs/internal/layout/classify"
)

// mostRoots bounds the directories that are remembered.
const mostRoots = 256

// roots are directories below which engines have files. Engines that spread blocks over directories by the first digits of a
// key meet a directory that is not there before they get to the name of the file.
type roots struct {
	of    map[string]root
	marks map[string]classify.Marks // of directories
}

// root is whose files are in a directory: the last ones that were seen.
type root struct {
	owner classify.Owner
	model string
}

func newRoots() roots { return roots{of: map[string]root{}, marks: map[string]classify.Marks{}} }

// note takes in whose a file is.
func (r *roots) note(f classify.File) {
	if _, known := r.of[f.Root]; known || len(r.of) < mostRoots {
		r.of[f.Root] = root{f.Owner, f.Model}
	}
}

// spreadBelow returns the root below which a path is that of a directory by which blocks are spread.
func (r *roots) spreadBelow(path string) (root, bool) {
	for range 2 {
		dir, name := cut(path)
		if !spreads(name) {
			return root{}, false
		}
		if in, ok := r.of[dir]; ok {
			return in, true
		}
		path = dir
	}
	return root{}, false
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

// noteMark takes in what a name says about its directory. The caller holds mu.
func (c *Counter) noteMark(path string) {
	if !isMark(path) {
		return
	}
	dir, name := cut(path)
	_, known := c.roots.marks[dir]
	if !known && len(c.roots.marks) >= mostRoots {
		return
	}
	mark := classify.MarkOf(name)
	c.roots.marks[dir] |= mark
	if mark == classify.DotTemp {
		c.roots.note(classify.File{Owner: classify.Ds3fs, Root: dir})
	}
}

// classify says what the file at a path is, with what is known of the directories around it. The caller holds mu.
func (c *Counter) classify(path string) classify.File {
	here, _ := cut(path)
	above, _ := cut(here)
	f := classify.Classify(path, classify.Context{Here: c.roots.marks[here], Above: c.roots.marks[above]})
	if isBlock(f) {
		c.roots.note(f)
	}
	return f
}
