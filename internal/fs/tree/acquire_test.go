package tree

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// The kernel applies these replies even if a ring write came in between.
func TestRepliesThatMayNotBeKept(t *testing.T) {
	tr, _ := newTree(t, Options{})
	e, h := create(t, tr, RootID, "f", root, 0o644)
	h.Close()
	size := uint64(5)
	if got := must(tr.Setattr(e.ID, Change{Size: &size}, time.Minute)); got.Keep != 0 {
		t.Errorf("setattr: keep %v", got.Keep)
	}
	if got := must(tr.Link(e.ID, RootID, "g", root, time.Minute)); got.Keep != 0 {
		t.Errorf("link: keep %v", got.Keep)
	}
	again, h, err := tr.Create(RootID, "f", unix.O_RDWR, 0o644, root, time.Minute)
	if err != nil || again.Keep != 0 {
		t.Errorf("create of an existing file: keep %v, %v", again.Keep, err)
	}
	h.Close()
	if d := must(tr.Mkdir(RootID, "d", 0o755, root, time.Minute)); d.Keep != time.Minute {
		t.Errorf("directory: keep %v", d.Keep)
	}
}

// A file that other processes keep creating and removing can be opened with O_CREAT.
func TestCreateWhileOthersRemove(t *testing.T) {
	tr, dir := newTree(t, Options{})
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if fd, err := unix.Open(filepath.Join(dir, "f"), unix.O_CREAT|unix.O_RDWR, 0o666); err == nil {
				unix.Close(fd)
			}
			unix.Unlink(filepath.Join(dir, "f"))
		}
	}()
	for range 2000 {
		e, h, err := tr.Create(RootID, "f", unix.O_RDWR, 0o666, root, 0)
		if err != nil {
			t.Errorf("create: %v", err)
			break
		}
		h.Close()
		tr.Forget(e.ID, 1)
	}
	close(stop)
	<-done
}

// A temporary lack of descriptors is not remembered for a device or a file.
func TestTemporaryErrorsAreNotRemembered(t *testing.T) {
	tr, _ := newTree(t, Options{})
	e, h := create(t, tr, RootID, "f", root, 0o644)
	defer h.Close()
	f := must(tr.Acquire(e.Attr.Ino, root, true))
	defer f.Release()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	_, twin := f.DirectFD()
	direct, temporary := h.DirectIO()
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	if twin || direct || temporary != unix.EMFILE {
		t.Fatalf("without descriptors: %v, %v, %v", twin, direct, temporary)
	}
	fd, err := unix.Open(procPath(h.FD()), unix.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		t.Skip("no O_DIRECT here")
	}
	unix.Close(fd)
	if _, twin := f.DirectFD(); !twin {
		t.Error("the file has no O_DIRECT descriptor after a temporary error")
	}
	if direct, err := h.DirectIO(); !direct || err != nil {
		t.Error("the device is taken to refuse O_DIRECT after a temporary error", err)
	}
}

// A ring write clears set-id bits, as a write does.
func TestRingWritesClearSetID(t *testing.T) {
	needRoot(t)
	tr, _ := newTree(t, Options{})
	e, h := create(t, tr, RootID, "f", root, 0o666)
	defer h.Close()
	setID := uint32(0o6777)
	for round := range 2 { // also after the first write to an open file
		must(tr.Setattr(e.ID, Change{Mode: &setID}, 0))
		if err := mayUse(tr, e, alice, false); err != nil {
			t.Fatal(err)
		}
		if err := mayUse(tr, e, root, true); err != nil {
			t.Fatal(err)
		}
		if got := must(tr.Getattr(e.ID, 0)); got.Attr.Mode&0o7777 != setID {
			t.Errorf("round %d: a read or the super-user's write cleared: %o", round, got.Attr.Mode)
		}
		if err := mayUse(tr, e, alice, true); err != nil {
			t.Fatal(err)
		}
		if got := must(tr.Getattr(e.ID, 0)); got.Attr.Mode&0o7777 != 0o777 {
			t.Errorf("round %d: mode %o after alice's ring write", round, got.Attr.Mode)
		}
	}
}

// The kernel's decision about a file stays valid until a directory above it changes.
func TestVerdictsFollowDirectories(t *testing.T) {
	needRoot(t)
	tr, _ := newTree(t, Options{})
	top := must(tr.Mkdir(RootID, "top", 0o755, root, 0))
	closed := must(tr.Mkdir(RootID, "closed", 0o700, root, 0))
	d := must(tr.Mkdir(top.ID, "d", 0o755, root, 0))
	e, h := create(t, tr, d.ID, "f", root, 0o664)
	defer h.Close()
	want := func(what string, want error) {
		t.Helper()
		for range 2 {
			if err := mayUse(tr, e, alice, false); err != want {
				t.Errorf("%s: %v, want %v", what, err, want)
			}
		}
	}
	want("open to all", nil)
	mode := uint32(0o700)
	must(tr.Setattr(top.ID, Change{Mode: &mode}, 0))
	want("directory above closed", unix.EACCES)
	mode = 0o755
	must(tr.Setattr(top.ID, Change{Mode: &mode}, 0))
	want("and open", nil)
	if err := tr.Rename(top.ID, "d", closed.ID, "d", 0, root); err != nil {
		t.Fatal(err)
	}
	want("moved into a closed one", unix.EACCES)

	grouped := alice
	grouped.GID = 777
	group := uint32(777)
	if err := tr.Rename(closed.ID, "d", top.ID, "d", 0, root); err != nil {
		t.Fatal(err)
	}
	must(tr.Setattr(e.ID, Change{GID: &group}, 0))
	if err := mayUse(tr, e, alice, true); err != unix.EACCES {
		t.Errorf("without the group: %v", err)
	}
	if err := mayUse(tr, e, grouped, true); err != nil {
		t.Errorf("with the group: %v", err)
	}
}

// A file with two names can be used by any user who can reach one of them.
func TestOneReachableNameIsEnough(t *testing.T) {
	needRoot(t)
	tr, dir := newTree(t, Options{})
	closed := must(tr.Mkdir(RootID, "closed", 0o700, root, 0))
	e, h := create(t, tr, closed.ID, "f", root, 0o644)
	h.Close()
	if err := mayUse(tr, e, alice, false); err != unix.EACCES {
		t.Errorf("one closed name: %v", err)
	}
	must(tr.Link(e.ID, RootID, "g", root, 0))
	if err := mayUse(tr, e, alice, false); err != nil {
		t.Errorf("and an open one: %v", err)
	}
	if err := os.Remove(filepath.Join(dir, "g")); err != nil {
		t.Fatal(err)
	}
	if err := mayUse(tr, e, alice, false); err != unix.EACCES {
		t.Errorf("after the open name was removed: %v", err)
	}
}
