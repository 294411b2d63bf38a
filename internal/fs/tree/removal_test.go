package tree

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

func removeAll(tr *Tree, c cred.Caller, rel string) error {
	_, err := tr.RemoveAll(c, rel, nil)
	return err
}

// A directory that was removed and created again is a different one.
func TestRemoveDirRemovesThatDirectory(t *testing.T) {
	tr, dir := newTree(t, Options{})
	old := must(tr.Mkdir(RootID, "d", 0o755, root, 0))
	if err := tr.Rmdir(RootID, "d"); err != nil {
		t.Fatal(err)
	}
	must(tr.Mkdir(RootID, "d", 0o755, root, 0))
	if _, err := tr.RemoveDir(root, old.ID, nil); err != unix.ENOENT {
		t.Errorf("removed directory: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, "d")); err != nil {
		t.Fatal("the new directory of that name was removed")
	}
	moved := must(tr.Mkdir(RootID, "m", 0o755, root, 0))
	if err := tr.Rename(RootID, "m", RootID, "n", 0, root); err != nil {
		t.Fatal(err)
	}
	if went, err := tr.RemoveDir(root, moved.ID, nil); err != nil || went != (Name{RootID, "n"}) {
		t.Errorf("moved directory: %v, %v", went, err)
	}
	if _, err := tr.RemoveDir(root, RootID, nil); err != unix.EINVAL {
		t.Errorf("root: %v", err)
	}
}

// makeDeep creates a chain of directories below dir.
func makeDeep(t *testing.T, dir string, levels int) {
	t.Helper()
	at := must(unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY, 0))
	for range levels {
		if err := unix.Mkdirat(at, "d", 0o755); err != nil {
			t.Fatal(err)
		}
		next := must(unix.Openat(at, "d", unix.O_PATH|unix.O_DIRECTORY, 0))
		unix.Close(at)
		at = next
	}
	unix.Close(at)
}

// Removing a deep tree takes few descriptors.
func TestRemoveDeepTree(t *testing.T) {
	tr, dir := newTree(t, Options{})
	for _, name := range []string{"deep", "deep/one", "deep/two"} {
		if err := os.Mkdir(filepath.Join(dir, name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	makeDeep(t, filepath.Join(dir, "deep/one"), 3000)
	makeDeep(t, filepath.Join(dir, "deep/two"), 3000)
	known := must(tr.Lookup(RootID, "deep", 0, 0)) // the kernel knows part of it
	known = must(tr.Lookup(known.ID, "one", 0, 0))
	for range 50 {
		known = must(tr.Lookup(known.ID, "d", 0, 0))
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	few := limit
	few.Cur = 100
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &few); err != nil {
		t.Fatal(err)
	}
	defer unix.Setrlimit(unix.RLIMIT_NOFILE, &limit)
	if err := removeAll(tr, root, "deep"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(filepath.Join(dir, "deep")); !os.IsNotExist(err) {
		t.Errorf("it still exists: %v", err)
	}
}

// A removal ends although another process keeps creating entries, and when it is canceled.
func TestRemovalEnds(t *testing.T) {
	tr, dir := newTree(t, Options{})
	busy := filepath.Join(dir, "busy")
	if err := os.Mkdir(busy, 0o755); err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
			}
			if fd, err := unix.Open(fmt.Sprintf("%s/%d", busy, i), unix.O_CREAT|unix.O_WRONLY, 0o644); err == nil {
				unix.Close(fd)
			}
		}
	}()
	time.Sleep(10 * time.Millisecond)
	done := make(chan error, 1)
	go func() { done <- removeAll(tr, root, "busy") }()
	select {
	case err := <-done:
		if err != nil && err != unix.ENOTEMPTY {
			t.Errorf("busy directory: %v", err)
		}
	case <-time.After(10 * time.Second):
		t.Error("the removal does not end")
	}
	close(stop)
	<-stopped
	if err := removeAll(tr, root, "busy"); err != nil && err != unix.ENOENT {
		t.Errorf("afterwards: %v", err)
	}

	makeDeep(t, dir, 3)
	canceled := func(...uint64) error { return unix.EINTR }
	if _, err := tr.RemoveAll(root, "d", canceled); err != unix.EINTR {
		t.Errorf("canceled: %v", err)
	}
}

// Nothing is removed if part of a tree belongs to another user or is closed to its owner.
func TestRemovalRequiresOwnership(t *testing.T) {
	needRoot(t)
	for what, c := range map[string]struct {
		top, below  cred.Caller
		mode, inner uint32
		want        error
	}{
		"own":                      {alice, alice, 0o755, 0o700, nil},
		"open to all":              {bob, bob, 0o777, 0o777, unix.EPERM},
		"another's below":          {alice, bob, 0o777, 0o777, unix.EPERM},
		"closed to its owner":      {alice, alice, 0o555, 0o755, unix.EPERM},
		"closed to its owner, sub": {alice, alice, 0o755, 0o500, unix.EPERM},
	} {
		tr, dir := newTree(t, Options{})
		if err := os.Chmod(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		d := must(tr.Mkdir(RootID, "d", c.mode, c.top, 0))
		_, h := create(t, tr, d.ID, "aaa", c.top, 0o666)
		h.Close()
		sub := must(tr.Mkdir(d.ID, "sub", c.inner, c.below, 0))
		_, h = create(t, tr, sub.ID, "f", bob, 0o666)
		h.Close()
		if err := tr.RemoveEntry(alice, RootID, "d", true, nil); err != c.want {
			t.Errorf("%s: %v, want %v", what, err, c.want)
		}
		for _, name := range []string{"d/aaa", "d/sub/f"} {
			if _, err := os.Stat(filepath.Join(dir, name)); (err == nil) != (c.want != nil) {
				t.Errorf("%s: %s: %v", what, name, err)
			}
		}
	}
}

// Removing one of several names makes the kernel forget the link count.
func TestRemovingANameChangesTheCount(t *testing.T) {
	told := 0
	tr, _ := newTree(t, Options{Invalidate: func(uint64, bool) { told++ }})
	a, h := create(t, tr, RootID, "a", root, 0o644)
	h.Close()
	must(tr.Link(a.ID, RootID, "b", root, 0))
	must(tr.Link(a.ID, RootID, "c", root, 0))
	if err := removeAll(tr, root, "a"); err != nil || told != 1 {
		t.Errorf("%v, told %d times", err, told)
	}
	if err := tr.RemoveEntry(root, RootID, "b", false, nil); err != nil || told != 2 {
		t.Errorf("%v, told %d times", err, told)
	}
}

// A move by link replaces nothing, because the kernel may not know the target.
func TestMoveIntoReplacesNothing(t *testing.T) {
	tr, _ := newTree(t, Options{})
	for _, name := range []string{"a", "b"} {
		_, h := create(t, tr, RootID, name, root, 0o644)
		h.Close()
	}
	if _, err := tr.MoveInto(root, "a", RootID, "b"); err != unix.EEXIST {
		t.Errorf("onto a file: %v", err)
	}
	if went, err := tr.MoveInto(root, "a", RootID, "c"); err != nil || went != (Name{RootID, "a"}) {
		t.Errorf("%v, %v", went, err)
	}
}

// A directory named by inode number must be one that the caller can reach.
func TestDirByIno(t *testing.T) {
	needRoot(t)
	tr, _ := newTree(t, Options{})
	closed := must(tr.Mkdir(RootID, "closed", 0o700, bob, 0))
	inside := must(tr.Mkdir(closed.ID, "inside", 0o777, bob, 0))
	f, h := create(t, tr, RootID, "f", bob, 0o644)
	h.Close()
	for _, c := range []struct {
		ino  uint64
		who  cred.Caller
		want error
	}{
		{closed.Attr.Ino, bob, nil}, {inside.Attr.Ino, bob, nil}, {inside.Attr.Ino, root, nil},
		{closed.Attr.Ino, alice, unix.EPERM}, {inside.Attr.Ino, alice, unix.EPERM},
		{f.Attr.Ino, bob, unix.ENOTDIR}, {999999999, bob, unix.ENOENT}, {RootID, alice, nil},
	} {
		if _, err := tr.DirByIno(c.ino, c.who); err != c.want {
			t.Errorf("inode %d for uid %d: %v, want %v", c.ino, c.who.UID, err, c.want)
		}
	}
}

// Removing a tree that the kernel knows does not take a descriptor for each file, only one for its top.
func TestRemovalKeepsNoDescriptors(t *testing.T) {
	tr, _ := newTree(t, Options{})
	d := must(tr.Mkdir(RootID, "d", 0o755, root, 0))
	for i := range 100 {
		_, h := create(t, tr, d.ID, fmt.Sprint(i), root, 0o644)
		h.Close()
	}
	if err := removeAll(tr, root, "d"); err != nil {
		t.Fatal(err)
	}
	if len(tr.orphans) > 1 {
		t.Errorf("%d descriptors", len(tr.orphans))
	}
}
