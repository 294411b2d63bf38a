package tree

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
)

func needRoot(t *testing.T) {
	t.Helper()
	if !cred.Privileged() {
		t.Skip("needs root")
	}
}

// mayUse returns the error of Acquire.
func mayUse(tr *Tree, e Entry, c cred.Caller, write bool) error {
	f, err := tr.Acquire(e.Attr.Ino, c, write)
	if err == nil {
		f.Release()
	}
	return err
}

// The kernel opens files for file_getattr(2), FS_IOC_GETFLAGS and execve without
// checking the right to read. Such an open does not grant it.
func TestOpenDoesNotProveRights(t *testing.T) {
	needRoot(t)
	tr, _ := newTree(t, Options{})
	for _, c := range []struct {
		what  string
		mode  uint32
		flags int
	}{
		{"file_getattr", 0o600, unix.O_RDONLY},
		{"FS_IOC_GETFLAGS on a descriptor for writing", 0o622, unix.O_RDONLY},
		{"execve", 0o711, unix.O_RDONLY | openToExecute},
	} {
		e, h := create(t, tr, RootID, c.what, root, c.mode)
		h.Close()
		open, err := tr.Open(e.ID, alice, c.flags)
		if err != nil {
			t.Fatalf("%s: %v", c.what, err)
		}
		for range 2 { // the second time from memory
			if err := mayUse(tr, e, alice, false); err != unix.EACCES {
				t.Errorf("%s: reading by ring: %v", c.what, err)
			}
		}
		open.Close()
	}
}

// A file that was opened with the right to do so stays usable by rings while it is open.
func TestOpenByRightOutlivesTheRight(t *testing.T) {
	needRoot(t)
	tr, _ := newTree(t, Options{})
	e, h := create(t, tr, RootID, "f", root, 0o606)
	h.Close()
	open := must(tr.Open(e.ID, alice, unix.O_RDWR))
	none := uint32(0)
	must(tr.Setattr(e.ID, Change{Mode: &none}, 0))
	for _, write := range []bool{false, true} {
		if err := mayUse(tr, e, alice, write); err != nil {
			t.Errorf("write %v after chmod 0: %v", write, err)
		}
	}
	open.Close()
	if err := mayUse(tr, e, alice, false); err != unix.EACCES {
		t.Errorf("closed: %v", err)
	}
}

// A caller whose groups cannot be seen, since it is in another PID namespace, may use by rings
// what the kernel has let it open, and so may only callers of the same user and group.
func TestOpenOfAnUnseenCallerProvesRights(t *testing.T) {
	needRoot(t)
	tr, _ := newTree(t, Options{})
	e, h := create(t, tr, RootID, "f", root, 0o660) // of a group that is not alice's first one
	h.Close()
	const largeFile = 0x8000 // set by every open(2) of a 64-bit process; unix.O_LARGEFILE is 0
	unseen := alice
	unseen.PID = 0
	otherGroup := unseen
	otherGroup.GID++
	for _, c := range []struct {
		flags       int
		read, write error
	}{
		{unix.O_RDONLY, unix.EACCES, unix.EACCES}, // as for FS_IOC_GETFLAGS
		{unix.O_RDONLY | largeFile, nil, unix.EACCES},
		{unix.O_RDONLY | largeFile | openToExecute, unix.EACCES, unix.EACCES},
		{unix.O_WRONLY | largeFile, unix.EACCES, nil},
		{unix.O_RDWR | largeFile, nil, nil},
	} {
		open := must(tr.Open(e.ID, unseen, c.flags))
		for write, want := range map[bool]error{false: c.read, true: c.write} {
			if err := mayUse(tr, e, unseen, write); err != want {
				t.Errorf("flags %#x, write %v: %v, want %v", c.flags, write, err, want)
			}
			if err := mayUse(tr, e, otherGroup, write); err != unix.EACCES {
				t.Errorf("flags %#x, write %v, another group: %v", c.flags, write, err)
			}
		}
		open.Close()
		if err := mayUse(tr, e, unseen, false); err != unix.EACCES {
			t.Errorf("closed: %v", err)
		}
	}
}
