package tree

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestLocksEndWithTheDirectory(t *testing.T) {
	s, _ := newStage(t, Options{})
	d := must(s.Mkdir(RootID, "d", 0o755, root, 0))
	if err := s.Lock(d.ID); err != nil {
		t.Fatal(err)
	}
	s.Forget(d.ID, 1)
	d = must(s.Lookup(RootID, "d", 0))
	if !s.Locked(d.ID) {
		t.Error("the lock went with the kernel's memory")
	}
	s.Forget(d.ID, 1)
	if err := removeAll(s, root, "d"); err != nil {
		t.Fatal(err)
	}
	if len(s.locks) != 0 {
		t.Error("the lock outlives the directory")
	}
	_, h := create(t, s, RootID, "f", root, 0o644)
	defer h.Close()
	if err := s.Lock(h.ID()); err != unix.ENOTDIR {
		t.Errorf("lock a file: %v", err)
	}
}
