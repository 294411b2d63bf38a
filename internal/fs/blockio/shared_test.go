package blockio

import (
	"bytes"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// Whatever its alignment, a write to a shared directory leaves nothing in the page cache, and an aligned read
// brings nothing into it: another host's change would not be seen there.
func TestSharedLeavesNothingCached(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	f := open(t, path)
	if f.direct < 0 || KindOf(filepath.Dir(path)) != Disk {
		t.Skip("the directory for tests is not on a disk with direct I/O")
	}
	if _, err := shm.CachedPages(f.buffered, 0, 4096); err != nil {
		t.Skip("the kernel does not tell what it has cached: ", err)
	}
	const size = 1 << 20
	// Somebody reads the file before, one piece after the other: the kernel reads ahead in pieces of many pages, larger ones
	// further on, of which only one as a whole is dropped.
	const whole = 8 << 20
	if err := unix.Ftruncate(f.buffered, whole); err != nil {
		t.Fatal(err)
	}
	if n, err := unix.Pwrite(f.direct, memory(t, whole), 0); n != whole || err != nil {
		t.Fatal(n, err)
	}
	piece := make([]byte, 128<<10)
	mem, got := memory(t, size), memory(t, size)
	m := Mover{Mode: Shared, Kind: Disk, Sync: always()}
	for i, c := range [][2]int64{{0, size}, {4096, 8192}, {1, 100}, {5000, 70000}, {4096, 4097}, {0, 1}, {5<<20 + 1, 100}, {6<<20 + 4096, 8192}, {7<<20 - 1, 2}} {
		off, n := c[0], c[1]
		copy(mem, randomBytes(int(n) + i)[i:])
		for at := int64(0); at < whole; at += int64(len(piece)) {
			if _, err := unix.Pread(f.buffered, piece, at); err != nil {
				t.Fatal(err)
			}
		}
		wrote, _, err := m.Write(f, shm.OwnWindow(mem[:n]), 0, off)
		if wrote != n || err != nil {
			t.Fatalf("write %v: %d, %v", c, wrote, err)
		}
		check := func(what string) {
			begin := off &^ 4095
			if pages, err := shm.CachedPages(f.buffered, begin, (off+n+4095)&^4095-begin); err != nil || pages > 0 {
				t.Errorf("after the %s of %v, the page cache has %d pages: %v", what, c, pages, err)
			}
		}
		check("write")
		read, _, err := m.Read(f, shm.OwnWindow(got[:n]), 0, off)
		if read != n || err != nil || !bytes.Equal(got[:n], mem[:n]) {
			t.Fatalf("read %v: %d, %v, right: %t", c, read, err, bytes.Equal(got[:n], mem[:n]))
		}
		if off%SectorBytes == 0 && n%SectorBytes == 0 {
			check("read")
		}
	}
}

func TestModesHaveNames(t *testing.T) {
	for _, m := range []Mode{Auto, Buffered, Direct} {
		if parsed, err := ParseMode(fmt.Sprint(m)); err != nil || parsed != m {
			t.Errorf("%v: %v, %v", m, parsed, err)
		}
	}
	if _, err := ParseMode(fmt.Sprint(Shared)); err == nil {
		t.Error("--io shared is accepted, which the file system decides")
	}
}

// always is for writes that are synced.
func always() *atomic.Bool {
	var b atomic.Bool
	b.Store(true)
	return &b
}
