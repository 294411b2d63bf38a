package tree

import (
	"testing"

	"golang.org/x/sys/unix"
)

func TestCloseMayFail(t *testing.T) {
	t.Setenv("TMPDIR", "/dev/shm")
	tr, err := Open(t.TempDir(), Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	_, h, err := tr.Create(RootID, "f", unix.O_RDWR, 0o644, root, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	if h.CloseMayFail() {
		t.Error("the close of a file in memory may fail")
	}
}
