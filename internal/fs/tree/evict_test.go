package tree

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/internal/test/usagemodel"
)

func victimAt(t testing.TB, path string) Victim {
	t.Helper()
	st, err := statAt(unix.AT_FDCWD, path)
	if err != nil {
		t.Fatal(err)
	}
	return Victim{
		Key:       FileKey{Dev: uint64(st.Dev_major)<<32 | uint64(st.Dev_minor), Ino: st.Ino},
		SizeBytes: int64(st.Size), MtimeNs: st.Mtime.Sec*1e9 + int64(st.Mtime.Nsec),
	}
}

// Only the very file that was seen is evicted, and only while nobody has it.
func TestEvict(t *testing.T) {
	model := usagemodel.New(t)
	tr, dir := newTree(t, Options{Usage: model})
	model.Created(keyOf(tr.root.key), FileKey{}, "", true)
	d := must(tr.Mkdir(RootID, "d", 0o755, root, 0))
	defer tr.Forget(d.ID, 1)
	e, h := create(t, tr, d.ID, "f", root, 0o644)
	must(h.Write(make([]byte, 5000), 0, false, 0, nil))
	path := filepath.Join(dir, "d", "f")
	want := victimAt(t, path)
	refused := func(what string, err error, errno error) {
		t.Helper()
		if err != errno {
			t.Errorf("%s: %v", what, err)
		}
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%s: the file is gone", what)
		}
	}
	refused("open through the mount", tr.Evict("d", "f", want), unix.EBUSY)
	h.Close()

	f := must(tr.Acquire(e.Attr.Ino, root, false))
	refused("used by a ring", tr.Evict("d", "f", want), unix.EBUSY)
	f.Release()
	local := must(os.Open(path))
	refused("open in the data directory", tr.Evict("d", "f", want), unix.EBUSY)
	local.Close()
	mapping := must(os.Open(path))
	bytes := must(unix.Mmap(int(mapping.Fd()), 0, 4096, unix.PROT_READ, unix.MAP_SHARED))
	mapping.Close()
	refused("mapped", tr.Evict("d", "f", want), unix.EBUSY)
	unix.Munmap(bytes)

	for what, change := range map[string]func(*Victim){
		"another inode": func(v *Victim) { v.Key.Ino++ }, "another device": func(v *Victim) { v.Key.Dev++ },
		"another size": func(v *Victim) { v.SizeBytes++ }, "written since": func(v *Victim) { v.MtimeNs++ },
	} {
		other := want
		change(&other)
		refused(what, tr.Evict("d", "f", other), unix.ESTALE)
	}
	refused("missing", tr.Evict("d", "g", want), unix.ENOENT)
	refused("the directory", tr.Evict(".", "d", victimAt(t, filepath.Dir(path))), unix.ESTALE)
	os.Symlink("d/f", filepath.Join(dir, "link"))
	os.Symlink("d", filepath.Join(dir, "linked"))
	refused("through a link", tr.Evict(".", "link", want), unix.ESTALE)
	refused("below a link", tr.Evict("linked", "f", want), unix.ENOTDIR)
	refused("state", tr.Evict(".", StateName, victimAt(t, filepath.Join(dir, StateName))), unix.ENOENT)

	os.Link(path, filepath.Join(dir, "other"))
	refused("of several names", tr.Evict("d", "f", want), unix.ESTALE)
	os.Remove(filepath.Join(dir, "other"))

	var stale []uint64
	tr.SetInvalidate(func(id uint64, _ bool) { stale = append(stale, id) })
	if err := tr.Evict("d", "f", want); err != nil || !slices.Equal(stale, []uint64{e.ID}) {
		t.Errorf("attributes of nodes %d are stale, not of %d: %v", stale, e.ID, err)
	}
	if _, err := tr.Open(e.ID, root, unix.O_RDONLY); err != unix.ESTALE && err != unix.ENOENT {
		t.Errorf("open of an evicted file: %v", err)
	}
	tr.Forget(e.ID, 1)
	model.Check(dir)
}

// A client that opens a file while it is evicted either keeps it or finds that it is gone.
func TestOpenWhileEvicting(t *testing.T) {
	model := usagemodel.New(t)
	tr, dir := newTree(t, Options{Usage: model})
	model.Created(keyOf(tr.root.key), FileKey{}, "", true)
	path := filepath.Join(dir, "f")
	r := rand.New(rand.NewPCG(seed.New(t), 3))
	evicted, opened := 0, 0
	for range 3000 {
		e, h := create(t, tr, RootID, "f", root, 0o644)
		h.Close()
		want := victimAt(t, path)
		gone := make(chan error, 1)
		begin := make(chan struct{})
		go func() {
			<-begin
			gone <- tr.Evict(".", "f", want)
		}()
		close(begin)
		for until := time.Now().Add(time.Duration(r.IntN(100)) * time.Microsecond); time.Now().Before(until); {
		}
		h, err := tr.Open(e.ID, root, unix.O_RDWR)
		if evictErr := <-gone; evictErr == nil {
			evicted++
			if err == nil {
				t.Fatal("a client has a file open that was evicted")
			}
		} else if evictErr != unix.EBUSY {
			t.Fatal(evictErr)
		}
		if err == nil {
			opened++
			h.Close()
			if err := tr.Unlink(RootID, "f"); err != nil {
				t.Fatal(err)
			}
		} else if err != unix.ESTALE && err != unix.ENOENT {
			t.Fatal(err)
		}
		if uid, toClose := tr.Forget(e.ID, 1); toClose {
			tr.CloseForgotten(uid)
		}
	}
	t.Logf("evicted %d times, opened %d times", evicted, opened)
	model.Check(dir)
}

// Without CAP_LEASE, which containers rarely have, the daemon knows who has another user's
// file open.
func TestEvictWithoutCapLease(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	model := usagemodel.New(t)
	tr, dir := newTree(t, Options{Usage: model})
	model.Created(keyOf(tr.root.key), FileKey{}, "", true)
	path := filepath.Join(dir, "f")
	e, h := create(t, tr, RootID, "f", cred.Caller{UID: 1234, GID: 1234}, 0o644)
	h.Close()
	defer tr.Forget(e.ID, 1)
	want := victimAt(t, path)
	local := must(os.Open(path))
	evict := func() error {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // for ever: the thread ends with the goroutine
			dropCapability(t, unix.CAP_LEASE)
			done <- tr.Evict(".", "f", want)
		}()
		return <-done
	}
	if err := evict(); err != unix.EBUSY {
		t.Errorf("open in the data directory: %v", err)
	}
	local.Close()
	if err := evict(); err != nil {
		t.Errorf("not open: %v", err)
	}
	if !tr.HasLeases() {
		t.Error("the file system of this test has no leases")
	}
}

// dropCapability takes a capability from this thread.
func dropCapability(t *testing.T, which int) {
	head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&head, &data[0]); err != nil {
		t.Error(err)
		return
	}
	data[which/32].Effective &^= 1 << (which % 32)
	if err := unix.Capset(&head, &data[0]); err != nil {
		t.Error(err)
	}
}
