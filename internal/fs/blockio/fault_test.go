package blockio

import (
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// shrunken returns a mapping of size bytes of an object that has only the first present
// bytes, like an iov whose client has truncated its object.
func shrunken(t *testing.T, size, present int) []byte {
	t.Helper()
	fd, err := unix.MemfdCreate("kv3fs-blockio-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	if err := unix.Ftruncate(fd, int64(present)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

// Client memory that is not there is an error, not the end of the file: in every mode, on
// disk and in memory, wherever it begins, cached or not.
func TestFaultsAreErrors(t *testing.T) {
	const size = 2 << 20
	inMemory, err := os.MkdirTemp(shm.Dir, "kv3fs-blockio-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(inMemory) })
	for _, dir := range []string{t.TempDir(), inMemory} {
		f := open(t, filepath.Join(dir, "f"))
		for _, present := range []int{0, 4096, 3 * 4096, 1 << 20, 1<<20 + 4096, size - 4096} {
			mem := shrunken(t, size, present)
			for _, mode := range []Mode{Buffered, Direct, Auto} {
				m := Mover{Mode: mode, Kind: KindOf(dir)}
				for _, cached := range []bool{true, false} {
					if _, _, err := m.Write(f, shm.OwnWindow(memory(t, size)), 0, 0); err != nil {
						t.Fatal(err)
					}
					if !cached {
						unix.Fsync(f.buffered)
						unix.Fadvise(f.buffered, 0, 0, unix.FADV_DONTNEED)
					}
					if n, _, err := m.Read(f, shm.OwnWindow(mem), 0, 0); err != unix.EFAULT {
						t.Errorf("%s %v, cached %v: read into %d of %d bytes: %d, %v", dir, mode, cached, present, size, n, err)
					}
				}
				if n, _, err := m.Write(f, shm.OwnWindow(mem), 0, 0); err != unix.EFAULT {
					t.Errorf("%s %v: write from %d of %d bytes: %d, %v", dir, mode, present, size, n, err)
				}
			}
			// Up to the end of the file, memory behind it does not matter.
			if err := unix.Ftruncate(f.buffered, int64(present)); err != nil {
				t.Fatal(err)
			}
			if n, _, err := (Mover{Kind: KindOf(dir)}).Read(f, shm.OwnWindow(mem), 0, 0); n != int64(present) || err != nil {
				t.Errorf("%s: read of a file of %d bytes: %d, %v", dir, present, n, err)
			}
		}
	}
}
