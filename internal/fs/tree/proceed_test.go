package tree

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// What is not to proceed changes nothing.
func TestProceed(t *testing.T) {
	tr, dir := newTree(t, Options{})
	file := func(name string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte("text"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file("f")
	file("to")
	if err := os.MkdirAll(filepath.Join(dir, "d/e"), 0o755); err != nil {
		t.Fatal(err)
	}
	file("d/e/g")
	f, err := tr.Lookup(RootID, "f", 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	no := func(...uint64) error { asked++; return unix.EIO }
	two := uint64(2)
	for name, call := range map[string]func() error{
		"unlink":    func() error { return tr.Unlink(RootID, "f", no) },
		"rmdir":     func() error { return tr.Rmdir(RootID, "d", no) },
		"rename":    func() error { return tr.Rename(RootID, "f", RootID, "to", 0, root, no) },
		"move":      func() error { return tr.RenameAs(RootID, "f", RootID, "to", root, false, no) },
		"move into": func() error { _, err := tr.MoveInto(root, "f", RootID, "other", no); return err },
		"mkdir":     func() error { _, err := tr.Mkdir(RootID, "new", 0o755, root, 0, no); return err },
		"mknod":     func() error { _, err := tr.Mknod(RootID, "new", 0o644, root, 0, no); return err },
		"symlink":   func() error { _, err := tr.Symlink(RootID, "new", "f", root, 0, no); return err },
		"link":      func() error { _, err := tr.Link(f.ID, RootID, "new", root, 0, no); return err },
		"hard link": func() error { return tr.LinkAs(f.ID, RootID, "new", root, no) },
		"create":    func() error { _, _, err := tr.Create(RootID, "new", unix.O_RDWR, 0o644, root, 0, no); return err },
		"shorten":   func() error { _, err := tr.Setattr(f.ID, Change{Size: &two}, 0, no); return err },
		"mode":      func() error { m := uint32(0o600); _, err := tr.Setattr(f.ID, Change{Mode: &m}, 0, no); return err },
		"open":      func() error { _, err := tr.Open(f.ID, root, unix.O_WRONLY|unix.O_TRUNC, no); return err },
		"hole":      func() error { return tr.PunchHole(f.ID, root, []uint64{0}, []uint64{4}, no) },
		"remove":    func() error { return tr.RemoveEntry(root, RootID, "to", false, no) },
		"remove d":  func() error { return tr.RemoveEntry(root, RootID, "d", true, no) },
	} {
		before := asked
		if err := call(); err != unix.EIO || asked == before {
			t.Errorf("%s: %v, asked %d times", name, err, asked-before)
		}
	}
	for name, size := range map[string]int64{"f": 4, "to": 4, "d/e/g": 4, "new": -1, "other": -1} {
		st, err := os.Lstat(filepath.Join(dir, name))
		if err != nil && size >= 0 || err == nil && (st.Size() != size || st.Mode() != 0o644) {
			t.Errorf("%s: %v, %v", name, st, err)
		}
	}
}

// What a rename uses is told before it: the file, too, which its client may still have open.
func TestProceedTellsNodes(t *testing.T) {
	tr, dir := newTree(t, Options{})
	for _, name := range []string{"a", "b"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "a/f"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	find := func(parent uint64, name string) uint64 {
		t.Helper()
		e, err := tr.Lookup(parent, name, 0, 0)
		if err != nil {
			t.Fatal(err)
		}
		return e.ID
	}
	a, b := find(RootID, "a"), find(RootID, "b")
	want := []uint64{a, b, find(a, "f")}
	for name, call := range map[string]func(Proceed) error{
		"rename":    func(p Proceed) error { return tr.Rename(a, "f", b, "f", 0, root, p) },
		"move":      func(p Proceed) error { return tr.RenameAs(a, "f", b, "f", root, false, p) },
		"move into": func(p Proceed) error { _, err := tr.MoveInto(root, "a/f", b, "f", p); return err },
	} {
		var got []uint64
		if err := call(func(nodes ...uint64) error { got = nodes; return unix.EIO }); err != unix.EIO || !slices.Equal(got, want) {
			t.Errorf("%s: %v, uses %v, want %v", name, err, got, want)
		}
	}
}

// A recursive removal goes no further than the entry at which it may not go on, the directories of that entry included.
func TestRemovalProceeds(t *testing.T) {
	for last := range 9 {
		tr, dir := newTree(t, Options{})
		if err := os.MkdirAll(filepath.Join(dir, "d/e"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "d/e/g"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		late := false // after that
		n, left := 0, 0
		count := func() (all int) {
			for _, name := range []string{"d", "d/e", "d/e/g"} {
				if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
					all++
				}
			}
			return all
		}
		err := tr.RemoveEntry(root, RootID, "d", true, func(...uint64) error {
			if n++; n > last && !late {
				late, left = true, count()
			}
			if late {
				return unix.EIO
			}
			return nil
		})
		if late && (err != unix.EIO || count() != left) || !late && (err != nil || count() != 0) {
			t.Errorf("%d steps: %v, %d entries are left of %d", last, err, count(), left)
		}
	}
}
