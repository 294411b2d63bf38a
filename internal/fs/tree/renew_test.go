package tree

import (
	"errors"
	"math"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// newShared returns a tree over a directory that other hosts may change, too, with a file that is open for writing.
func newShared(t *testing.T) (*Tree, *faultdir.Dir, Entry, *Handle) {
	t.Helper()
	d := faultdir.New(t)
	tr, err := Open(d.Path, Options{Shared: Sharing{Uncached: true, Forget: func(int) {}}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tr.Close() })
	e, h := create(t, tr, RootID, "f", root, 0o644)
	t.Cleanup(func() {
		h.Close()
		tr.Forget(e.ID, 1)
	})
	return tr, d, e, h
}

// Where an inode number is all that is known of a file, and may be used again, another one under its name may be another
// host's new file: its users must not read and write that one.
func TestRenewsOnlyWhatItRecognizes(t *testing.T) {
	for _, fuse := range []bool{true, false} {
		tr, d, _, _ := newShared(t)
		tr.behindFUSE, tr.overlay = fuse, true // no time of birth counts
		e, h := create(t, tr, RootID, "g", root, 0o644)
		d.Break(unix.ESTALE)
		if _, err := h.Read(make([]byte, 10), 0); fuse && err != nil || !fuse && err != unix.ESTALE {
			t.Errorf("behind FUSE: %v: a read through a descriptor that is broken: %v", fuse, err)
		}
		h.Close()
		tr.Forget(e.ID, 1)
	}
}

// What may be lost is told to each who could have written it, once, and to nobody else.
func TestLossIsToldToEachWriter(t *testing.T) {
	tr, d, e, a := newShared(t)
	b, reader := must(tr.Open(e.ID, root, unix.O_RDWR)), must(tr.Open(e.ID, bob, unix.O_RDONLY))
	defer b.Close()
	defer reader.Close()
	if _, err := a.Write([]byte("text"), 0, false, 0, nil); err != nil {
		t.Fatal(err)
	}
	if err := reader.Sync(true); err != nil {
		t.Error(err)
	}
	d.Break(unix.EBADFD)
	for _, h := range []*Handle{reader, b} {
		if _, err := h.Read(make([]byte, 4), 0); err != nil {
			t.Fatal(err)
		}
	}
	late := must(tr.Open(e.ID, root, unix.O_RDWR))
	defer late.Close()
	for _, c := range []struct {
		who  string
		h    *Handle
		want error
	}{{"a reader", reader, nil}, {"another writer", b, unix.EIO}, {"the writer", a, unix.EIO}, {"the writer again", a, nil}, {"who came later", late, nil}} {
		if err := c.h.Sync(false); err != c.want {
			t.Errorf("%s syncs: %v, want %v", c.who, err, c.want)
		}
	}
}

// A descriptor breaks and is put anew while it is being synced: that sync may have been one of nothing.
func TestBreaksDuringSync(t *testing.T) {
	_, d, _, h := newShared(t)
	if _, err := h.Write([]byte("text"), 0, false, 0, nil); err != nil {
		t.Fatal(err)
	}
	hangs := d.Hang(func(c faultdir.Call) bool { return c.Op == "fsync" })
	synced := make(chan error)
	go func() { synced <- h.Sync(false) }()
	<-hangs
	d.Break(unix.EBADFD)
	if _, err := h.Read(make([]byte, 4), 0); err != nil {
		t.Error(err)
	}
	d.Heal()
	if err := <-synced; err != unix.EIO {
		t.Errorf("a sync: %v, want EIO", err)
	}
}

// A file that is gone is not looked for at each use of it.
func TestGoneIsNotLookedForAgain(t *testing.T) {
	_, d, _, h := newShared(t)
	name, away := filepath.Join(d.Beneath, "f"), filepath.Join(d.Beneath, "away")
	if err := os.Rename(name, away); err != nil {
		t.Fatal(err)
	}
	d.Break(unix.ESTALE)
	fails := func() {
		t.Helper()
		if _, err := h.Read(make([]byte, 4), 0); !errors.Is(err, unix.ESTALE) {
			t.Errorf("a read of a file that is gone: %v", err)
		}
	}
	fails()
	until := &h.file.renewal.goneUntil
	if until.Load() == 0 {
		t.Error("the next read looks again")
	}
	if err := os.Rename(away, name); err != nil {
		t.Fatal(err)
	}
	until.Store(math.MaxInt64) // however slow this machine is
	fails()
	until.Store(0)
	if _, err := h.Read(make([]byte, 4), 0); err != nil {
		t.Errorf("the file is back, and it is time to look: %v", err)
	}
}

// A close through a broken descriptor fails only where something may be lost.
func TestFlushOfBroken(t *testing.T) {
	_, d, _, h := newShared(t)
	for _, want := range []error{nil, unix.EIO} {
		d.Break(unix.EBADFD)
		if err := h.Flush(); err != want {
			t.Errorf("a close: %v, want %v", err, want)
		}
		if _, err := h.Write([]byte("text"), 0, false, 0, nil); err != nil {
			t.Error(err)
		}
	}
}

func TestSetIDUnknown(t *testing.T) {
	_, d, _, h := newShared(t)
	if h.HasSetID() {
		t.Error("a plain file has bits")
	}
	d.Fail(faultdir.EIO("getattr"))
	if !h.HasSetID() {
		t.Error("nobody knows its mode, and it is taken to have no bits")
	}
	d.Heal()
}
