package tree

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// On overlayfs, a file or directory of a lower layer stays the same node when it is copied up:
// its link count is right at once, and whoever has it open keeps it.
func TestCopiedUp(t *testing.T) {
	needRoot(t)
	base := t.TempDir()
	dir := func(name string) string { return filepath.Join(base, name) }
	data := dir("data")
	err := errors.Join(os.Mkdir(dir("disk"), 0o755), os.Mkdir(data, 0o755))
	if err == nil {
		err = unix.Mount("tmpfs", dir("disk"), "tmpfs", 0, "mode=755")
	}
	if err != nil {
		t.Skipf("NOT TESTED: a disk for the layers: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir("disk"), unix.MNT_DETACH) })
	for _, layer := range []string{"disk/lower", "disk/upper", "disk/work", "disk/lower/d"} {
		if err := os.Mkdir(dir(layer), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(os.WriteFile(dir("disk/lower/a"), []byte("content"), 0o644), os.Link(dir("disk/lower/a"), dir("disk/lower/b"))); err != nil {
		t.Fatal(err)
	}
	layers := "index=on,lowerdir=" + dir("disk/lower") + ",upperdir=" + dir("disk/upper") + ",workdir=" + dir("disk/work")
	if err := unix.Mount("overlay", data, "overlay", 0, layers); err != nil {
		t.Skipf("NOT TESTED: overlayfs with an index: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(data, unix.MNT_DETACH) })
	tr, err := Open(data, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()

	a := must(tr.Lookup(RootID, "a", 0, 0))
	h := must(tr.Open(a.ID, root, unix.O_RDWR)) // copies it up
	defer h.Close()
	if !h.CloseMayFail() {
		t.Error("the close of a file above another file system is taken for one that cannot fail")
	}
	if b := must(tr.Lookup(RootID, "b", 0, 0)); b.ID != a.ID || b.Attr.Nlink != 2 {
		t.Errorf("the other name leads to node %d, %d links; want %d, 2", b.ID, b.Attr.Nlink, a.ID)
	}
	if c := must(tr.Link(a.ID, RootID, "c", root, 0)); c.ID != a.ID || c.Attr.Nlink != 3 {
		t.Errorf("a third name leads to node %d, %d links; want %d, 3", c.ID, c.Attr.Nlink, a.ID)
	}

	d := must(tr.Lookup(RootID, "d", 0, 0))
	if must(tr.Mkdir(d.ID, "sub", 0o755, root, 0)); must(tr.Lookup(RootID, "d", 0, 0)).ID != d.ID {
		t.Error("a directory that was copied up is another one")
	}
	if err := errors.Join(tr.Rmdir(d.ID, "sub"), tr.Rmdir(RootID, "d")); err != nil {
		t.Fatal(err)
	}
	if _, err := tr.Getattr(d.ID, 0); err != nil {
		t.Errorf("the status of a directory that was removed after that: %v", err)
	}
}
