package tree

import (
	"errors"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// inconsistent returns an error if the counts of the nodes contradict the indexes: each
// node counts the places that are in it, and a node that nothing refers to is dropped.
func (t *Tree) inconsistent() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var errs []error
	children := map[*node]int{}
	for n := range t.byID.all {
		if n != t.root {
			children[n.parent]++
		}
		for at := range t.links[n] {
			children[at.parent]++
		}
		if n.lookups == 0 && n.children == 0 && n != t.root {
			errs = append(errs, fmt.Errorf("node %d (%q) is kept although nothing refers to it", n.id, n.name))
		}
	}
	for n := range t.byID.all {
		if n.children != children[n] {
			errs = append(errs, fmt.Errorf("node %d (%q) counts %d children and has %d", n.id, n.name, n.children, children[n]))
		}
		delete(children, n)
	}
	for n := range children {
		errs = append(errs, fmt.Errorf("node %d (%q) has children and is not known", n.id, n.name))
	}
	return errors.Join(errs...)
}

// checkClose asserts what must hold when the tree is closed.
func (t *Tree) checkClose() {
	if !invariants.Enabled {
		return
	}
	inUse := t.inUse.Load()
	invariants.Check(inUse == 0, "tree closed with %d files and directories open", inUse)
	err := t.inconsistent()
	invariants.Check(err == nil, "%v", err)
}

// opened and closed count the files and directories that are open.
func (t *Tree) opened() {
	if invariants.Enabled {
		t.inUse.Add(1)
	}
}

func (t *Tree) closed() {
	if invariants.Enabled {
		left := t.inUse.Add(-1)
		invariants.Check(left >= 0, "more files and directories closed than opened")
	}
}

// checkDropLocked asserts that neither the kernel nor another node refers to n. Files of it
// may be open that the kernel has released and that are still to be closed.
func (n *node) checkDropLocked() {
	invariants.Check(n.lookups == 0 && n.children == 0, "node %d dropped with %d lookups and %d children", n.id, n.lookups, n.children)
}

// checkLocked asserts that the counts of an open file agree: each file counts its
// references, and each handle is one of them.
func (of *openFile) checkLocked() {
	if !invariants.Enabled {
		return
	}
	refs := 0
	for _, f := range of.files {
		if f != nil {
			invariants.Check(f.refs >= 0, "node %d: %d references to a file", of.node.id, f.refs)
			refs += f.refs
		}
	}
	// An open in progress is a user without a file yet.
	invariants.Check(of.users >= refs, "node %d: %d users, %d references", of.node.id, of.users, refs)
	invariants.Check(of.handles >= 0 && of.handles <= refs, "node %d: %d handles, %d references", of.node.id, of.handles, refs)
	for _, g := range of.grants {
		for dir, n := range g.count {
			invariants.Check(n >= 0 && n <= of.handles, "node %d: uid %d has %d grants of direction %d from %d handles", of.node.id, g.uid, n, dir, of.handles)
		}
	}
}
