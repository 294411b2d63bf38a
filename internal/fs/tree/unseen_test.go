package tree

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// While a client may have a file mapped for writing, the kernel keeps no attributes of it,
// also after the handle is closed; and it does again once the mapping has gone.
func TestMappedFilesAreNotCached(t *testing.T) {
	told := 0
	tr, dir := newTree(t, Options{Invalidate: func(uint64, bool) { told++ }})
	f, h := create(t, tr, RootID, "f", root, 0o644)
	n, err := tr.node(f.ID)
	if err != nil {
		t.Fatal(err)
	}
	keeps := func() bool { return must(tr.Getattr(f.ID, time.Hour)).Keep > 0 }
	if !keeps() {
		t.Fatal("the kernel keeps no attributes of a file that nobody can have mapped")
	}
	fd, err := unix.Open(dir+"/f", unix.O_RDWR, 0) // as the kernel opens it for a mapping
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Ftruncate(fd, 4096); err != nil {
		t.Fatal(err)
	}
	h.Passes(Opener{})
	if h.Keep(time.Hour) != 0 {
		t.Error("the kernel keeps attributes that come with a handle")
	}
	if told != 1 || keeps() {
		t.Errorf("told %d times to forget the attributes, want once; keeps new ones: %v", told, keeps())
	}
	m, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	h.Close()
	for range 3 {
		n.hotUntil.CompareAndSwap(n.hotUntil.Load(), unseen) // time for another look
		if keeps() {
			t.Error("the kernel keeps attributes of a mapped file")
		}
	}
	if !tellsWriters(tr.rootFD) {
		t.Skip("here the kernel does not tell who writes")
	}
	if err := unix.Munmap(m); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(20 * time.Second); !keeps(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the kernel never keeps attributes of a file that was mapped once")
		}
	}
}

// A file that is open is not settled, and can be opened at any time while others look.
func TestSettlingDisturbsNoOpen(t *testing.T) {
	tr, _ := newTree(t, Options{})
	f, h := create(t, tr, RootID, "f", root, 0o644)
	h.Close()
	n, err := tr.node(f.ID)
	if err != nil {
		t.Fatal(err)
	}
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				if _, err := tr.Getattr(f.ID, time.Hour); err != nil {
					t.Error(err)
				}
			}
		}
	}()
	for range 2000 {
		h, err := tr.Open(f.ID, root, unix.O_RDWR)
		if err != nil {
			t.Fatalf("open: %v", err)
		}
		h.Passes(Opener{})
		tr.settle(n)
		if n.hotUntil.Load() < unseen {
			t.Fatal("a file that is open is settled")
		}
		h.Close()
	}
	close(stop)
	<-stopped
}
