package tree

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestLocksEndWithTheDirectory(t *testing.T) {
	tr, _ := newTree(t, Options{})
	d := must(tr.Mkdir(RootID, "d", 0o755, root, 0))
	if err := tr.Lock(d.ID); err != nil {
		t.Fatal(err)
	}
	tr.Forget(d.ID, 1)
	d = must(tr.Lookup(RootID, "d", 0))
	if !tr.Locked(d.ID) {
		t.Error("the lock ended when the kernel forgot the directory")
	}
	tr.Forget(d.ID, 1)
	if err := removeAll(tr, root, "d"); err != nil {
		t.Fatal(err)
	}
	if len(tr.locks) != 0 {
		t.Error("the lock outlives the directory")
	}
	_, h := create(t, tr, RootID, "f", root, 0o644)
	defer h.Close()
	if err := tr.Lock(h.ID()); err != unix.ENOTDIR {
		t.Errorf("lock a file: %v", err)
	}
}
