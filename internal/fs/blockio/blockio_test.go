package blockio

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// onDisk is a file with a buffered and a direct descriptor.
type onDisk struct {
	buffered, direct int
	foreign          bool
}

func (f onDisk) FD() int               { return f.buffered }
func (f onDisk) DirectFD() (int, bool) { return f.direct, f.direct >= 0 }
func (f onDisk) OnDataDevice() bool    { return !f.foreign }
func (f onDisk) Confine(n int64) bool  { return n > 1<<20 }

func open(t *testing.T, path string) onDisk {
	t.Helper()
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	direct, err := unix.Open(path, unix.O_RDWR|unix.O_DIRECT, 0)
	if err == nil {
		t.Cleanup(func() { unix.Close(direct) })
	} else {
		direct = -1
	}
	return onDisk{buffered: fd, direct: direct}
}

// memory returns page-aligned memory, like that of an iov.
func memory(t *testing.T, size int) []byte {
	t.Helper()
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	return b
}

func randomBytes(n int) []byte {
	b := make([]byte, n)
	rng := rand.New(rand.NewPCG(1, uint64(n)))
	for i := range b {
		b[i] = byte(rng.Uint32())
	}
	return b
}

// Every mode, kind, alignment and state of the cache gives the bytes of the file, up to
// its end, and zeros where it has holes.
func TestAllModesReadTheSame(t *testing.T) {
	const fileBytes = 5<<20 + 1234
	content := randomBytes(fileBytes)
	clear(content[1<<20 : 2<<20]) // a hole
	mem := memory(t, 8<<20)
	for _, dir := range []string{t.TempDir(), shm.Dir} {
		path := filepath.Join(dir, "kv3fs-blockio-test")
		f := open(t, path)
		t.Cleanup(func() { os.Remove(path) })
		for _, mode := range []Mode{Buffered, Direct, Auto, Shared} {
			m := Mover{Mode: mode, Kind: KindOf(dir)}
			if err := unix.Ftruncate(f.buffered, 0); err != nil {
				t.Fatal(err)
			}
			copy(mem, content)
			for _, part := range [][2]int64{{0, 1 << 20}, {2 << 20, 4 << 20}, {4 << 20, fileBytes}} {
				n, _, err := m.Write(f, shm.OwnWindow(mem[part[0]:part[1]]), part[0], part[0])
				if n != part[1]-part[0] || err != nil {
					t.Fatalf("%s %v: write %v: %d, %v", dir, mode, part, n, err)
				}
			}
			if hole, err := HasHole(f.buffered, 0, fileBytes); err != nil || !hole {
				t.Errorf("%s %v: no hole seen: %v", dir, mode, err)
			}
			if hole, err := HasHole(f.buffered, 2<<20, 100<<20); err != nil || hole {
				t.Errorf("%s %v: a hole seen behind the hole: %v", dir, mode, err)
			}
			for _, foreign := range []bool{false, true} {
				f.foreign = foreign
				for i, r := range [][3]int64{ // offset in memory, in the file, length
					{0, 0, 6 << 20}, {0, 0, 4 << 20}, {4096, 8192, 1 << 20}, {5, 7, 300000}, {0, 1<<20 + 4096, 1 << 19},
					{0, 5 << 20, 4096}, {0, fileBytes - 10, 100}, {0, fileBytes, 4096}, {0, 1 << 40, 1 << 20}, {1, 1, 1},
				} {
					if i%2 == 0 { // so that some is cached and some is not
						unix.Fsync(f.buffered)
						unix.Fadvise(f.buffered, r[1]+r[2]/2, 0, unix.FADV_DONTNEED)
					}
					clear(mem)
					n, _, err := m.Read(f, shm.OwnWindow(mem[r[0]:r[0]+r[2]]), r[0], r[1])
					want := content[min(r[1], fileBytes):min(r[1]+r[2], fileBytes)]
					if err != nil || !bytes.Equal(mem[r[0]:r[0]+n], want) {
						t.Errorf("%s %v foreign %v: read %v: %d bytes, %v; want %d, or the bytes differ", dir, mode, foreign, r, n, err, len(want))
					}
				}
			}
			f.foreign = false
		}
	}
}

// Write reports that it may have waited, except where the data directory is in memory. A ring that
// counts as slow gets more workers, which compete for the file's lock there.
func TestWriteReportsWaiting(t *testing.T) {
	path := filepath.Join(shm.Dir, "kv3fs-blockio-waiting-test")
	f := open(t, path)
	t.Cleanup(func() { os.Remove(path) })
	mem := memory(t, 2<<20)
	for _, c := range []struct {
		kind    Kind
		foreign bool
		want    bool
	}{{Memory, false, false}, {Memory, true, true}, {Disk, false, true}} {
		f.foreign = c.foreign
		for _, size := range []int64{4096, 2 << 20} { // the larger one is confined
			m := Mover{Mode: Buffered, Kind: c.kind}
			if _, waited, err := m.Write(f, shm.OwnWindow(mem[:size]), 0, 0); waited != c.want || err != nil {
				t.Errorf("kind %d, foreign %v, %d bytes: waited %v, %v", c.kind, c.foreign, size, waited, err)
			}
		}
	}
}

// Read reports whether the bytes were cached, and is right in both cases.
func TestReadReportsWaiting(t *testing.T) {
	f := open(t, filepath.Join(t.TempDir(), "f"))
	mem := memory(t, 1<<20)
	m := Mover{Mode: Buffered, Kind: Disk}
	if _, _, err := m.Write(f, shm.OwnWindow(mem), 0, 0); err != nil {
		t.Fatal(err)
	}
	if _, waited, err := m.Read(f, shm.OwnWindow(mem), 0, 0); err != nil || waited {
		t.Errorf("just written: waited %v, %v", waited, err)
	}
	if err := unix.Fsync(f.buffered); err != nil {
		t.Fatal(err)
	}
	if err := unix.Fadvise(f.buffered, 0, 0, unix.FADV_DONTNEED); err != nil {
		t.Fatal(err)
	}
	if n, waited, err := m.Read(f, shm.OwnWindow(mem), 0, 0); err != nil || n != 1<<20 || !waited {
		t.Errorf("not cached: %d, waited %v, %v", n, waited, err)
	}
}

func TestErrnos(t *testing.T) {
	f := open(t, filepath.Join(t.TempDir(), "f"))
	mem := memory(t, 4096)
	for _, mode := range []Mode{Buffered, Direct, Auto, Shared} {
		m := Mover{Mode: mode}
		if _, _, err := m.Write(f, shm.OwnWindow(mem), 0, 1<<62); err != unix.EFBIG {
			t.Errorf("%v: write far beyond: %v", mode, err)
		}
		if _, _, err := m.Read(onDisk{-1, -1, false}, shm.OwnWindow(mem), 0, 0); err != unix.EBADF {
			t.Errorf("%v: closed file: %v", mode, err)
		}
	}
	if _, err := ParseMode("mmap"); err == nil {
		t.Error("mode mmap was accepted")
	}
}

// A write to a file in memory stores everything, in as many calls as it takes, and reports
// the errors of a disk.
func TestWriteToMemory(t *testing.T) {
	path := filepath.Join(shm.Dir, "kv3fs-blockio-test-write")
	f := open(t, path)
	t.Cleanup(func() { os.Remove(path) })
	m := Mover{Kind: KindOf(shm.Dir)}
	content := randomBytes(1 << 20) // larger writes are confined
	n, _, err := m.Write(f, shm.OwnWindow(content), 5, 5)
	got := make([]byte, 1<<20)
	if read, e := unix.Pread(f.buffered, got, 5); n != 1<<20 || err != nil || read != 1<<20 || e != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes, %v; read back %d, %v, or the bytes differ", n, err, read, e)
	}
	if _, _, err := m.Write(onDisk{buffered: -1, direct: -1}, shm.OwnWindow(content), 0, 0); err != unix.EBADF {
		t.Errorf("closed file: %v", err)
	}
	if n, _, err := m.Write(f, shm.OwnWindow(shrunken(t, 1<<20, 8192)), 0, 0); err != unix.EFAULT {
		t.Errorf("memory that is not there: %d, %v", n, err)
	}
}
