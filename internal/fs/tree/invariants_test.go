//go:build invariants

package tree

import (
	"strings"
	"testing"
)

// panicsWith runs fn, which must violate an invariant whose message contains want.
func panicsWith(t *testing.T, want string, fn func()) {
	t.Helper()
	defer func() {
		t.Helper()
		said, _ := recover().(string)
		if !strings.HasPrefix(said, "invariant violated: ") || !strings.Contains(said, want) {
			t.Errorf("panicked with %q, want %q", said, want)
		}
	}()
	fn()
}

func TestInvariantsOfNodes(t *testing.T) {
	tr, _ := newTree(t, Options{})
	d := must(tr.Mkdir(RootID, "d", 0o755, root, 0))
	n, _ := tr.byID.get(d.ID)

	panicsWith(t, "forgets 3 lookups of 1", func() {
		defer func() { n.lookups = 1; tr.mu.Unlock() }()
		tr.Forget(d.ID, 3)
	})
	panicsWith(t, "counts 1 children and has 0", func() {
		n.children++
		defer func() { n.children-- }()
		tr.checkClose()
	})
	panicsWith(t, "-1 children", func() {
		tr.mu.Lock()
		defer tr.mu.Unlock()
		defer func() { n.children++ }()
		tr.leftLocked(n)
	})
	panicsWith(t, "closed with 1 files", func() {
		dir := must(tr.OpenDir(d.ID))
		defer dir.Close()
		tr.checkClose()
	})
	panicsWith(t, "closed twice", func() {
		dir := must(tr.OpenDir(d.ID))
		dir.Close()
		dir.Close()
	})
}

func TestInvariantsOfOpenFiles(t *testing.T) {
	tr, _ := newTree(t, Options{})
	e, h := create(t, tr, RootID, "f", alice, 0o600)
	defer h.Close()
	n, _ := tr.byID.get(e.ID)
	of := n.open.Load()

	panicsWith(t, "1 users, 2 references", func() {
		h.file.refs++
		defer func() { h.file.refs-- }()
		of.checkLocked()
	})
	panicsWith(t, "2 handles, 1 references", func() {
		of.handles++
		defer func() { of.handles-- }()
		of.checkLocked()
	})
	panicsWith(t, "grants of direction", func() {
		of.grantLocked(holder{uid: alice.UID}, directions{true, false}, -2)
		defer of.grantLocked(holder{uid: alice.UID}, directions{true, false}, +2)
		of.checkLocked()
	})
	f := must(tr.Acquire(e.Attr.Ino, alice, true))
	f.Release()
	panicsWith(t, "-1 references", func() {
		defer of.mu.Unlock()
		of.handles, h.file.refs, of.users = 0, -1, 0
		defer func() { of.handles, h.file.refs, of.users = 1, 1, 1 }()
		of.mu.Lock()
		of.checkLocked()
	})
}
