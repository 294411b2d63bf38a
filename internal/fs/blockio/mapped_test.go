package blockio

import (
	"encoding/binary"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

const pageBytes = SectorBytes

// A client may have the page mapped that a ring writes to. Its stores to other bytes, at the
// same time, undo no write that is complete.
func TestDirectWritesBesideStores(t *testing.T) {
	const writes = 4000
	f := open(t, filepath.Join(t.TempDir(), "f"))
	if err := unix.Ftruncate(f.buffered, pageBytes); err != nil {
		t.Fatal(err)
	}
	mapped, err := unix.Mmap(f.buffered, 0, pageBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	mapped[0] = 1 // from here on, the page is in the page cache
	var others sync.WaitGroup
	var stop atomic.Bool
	defer unix.Munmap(mapped)
	defer others.Wait()
	defer stop.Store(true)
	others.Go(func() {
		for i := byte(0); !stop.Load(); i++ {
			mapped[pageBytes/2] = i
		}
	})
	others.Go(func() {
		for !stop.Load() {
			_ = unix.Msync(mapped, unix.MS_SYNC)
		}
	})
	mem, got, undone := memory(t, pageBytes), make([]byte, 8), 0
	for i := range uint64(writes) {
		binary.LittleEndian.PutUint64(mem, i)
		if n, _, err := (Mover{Mode: Direct}).Write(f, shm.OwnWindow(mem), 0, 0); n != pageBytes || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
		if _, err := unix.Pread(f.buffered, got, 0); err != nil {
			t.Fatal(err)
		}
		if binary.LittleEndian.Uint64(got) != i {
			undone++
		}
	}
	if undone > 0 {
		t.Errorf("%d of %d writes were undone", undone, writes)
	}
}

// What nobody has in the page cache is written past it, and what is there is written there.
func TestDirectWritesOfCachedPages(t *testing.T) {
	f, _ := coldFile(t, 8*pageBytes)
	m, mem := Mover{Mode: Direct}, memory(t, pageBytes)
	if _, err := unix.Pwrite(f.direct, mem, 0); err != nil || f.pages(t, 0, pageBytes) != 0 {
		t.Skipf("this file system writes through the page cache also with O_DIRECT: %v", err)
	}
	for _, cached := range []int{0, 1} {
		if cached > 0 {
			f.warm(t, 0, pageBytes)
		}
		if n, _, err := m.Write(f, shm.OwnWindow(mem), 0, 0); n != pageBytes || err != nil {
			t.Fatalf("write: %d, %v", n, err)
		}
		if got := f.pages(t, 0, pageBytes); got != cached {
			t.Errorf("of %d cached pages, %d are left", cached, got)
		}
	}
}
