package integrity

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) {
	if os.Getenv(otherProcess) != "" {
		if err := otherMain(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(leaktest.Main(m))
}

// dirs returns a directory on a disk, if the temporary one is, and one in memory.
func dirs(t *testing.T) []string {
	t.Helper()
	memory, err := os.MkdirTemp(shm.Dir, "kv3fs-integrity-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(memory) })
	all := []string{memory}
	if disk := t.TempDir(); Supported(disk) == "" && !inMemory(disk) {
		all = append(all, disk)
	}
	return all
}

func openStore(t testing.TB, dir string) *Store {
	t.Helper()
	s, err := Open(Options{Files: dir, Dir: filepath.Join(dir, "sums"), Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// kill ends a store as the end of its process does.
func (s *Store) kill() {
	s.log.close()
	s.watch.close()
}

// opened is a file as the daemon has it open.
type opened struct {
	t     testing.TB
	store *Store
	path  string
	fd    int
	sums  *File
}

func create(t testing.TB, s *Store, path string) *opened {
	t.Helper()
	return open(t, s, path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL)
}

func open(t testing.TB, s *Store, path string, flags int) *opened {
	t.Helper()
	fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	return &opened{t, s, path, fd, s.Acquire(fd, flags&unix.O_EXCL != 0)}
}

func (o *opened) close() {
	o.store.Release(o.sums, o.fd)
	unix.Close(o.fd)
}

// write writes as a ring does.
func (o *opened) write(b []byte, off int64) {
	o.t.Helper()
	w := o.sums.BeginWrite(&Write{}, o.fd, off, int64(len(b)))
	w.Hash(shm.OwnWindow(b))
	n, err := unix.Pwrite(o.fd, b, off)
	w.End(n == len(b) && err == nil)
	if err != nil {
		o.t.Fatal(err)
	}
}

// read reads as a ring does. verified is how many bytes were compared.
func (o *opened) read(off, n int64) (b []byte, bad Damage, found bool, verified int64) {
	b = make([]byte, n)
	before := o.store.counters.verified.Load()
	var r Read
	checks := o.sums.BeginRead(&r, o.fd, off, n)
	got, err := readAll(o.fd, b, off)
	if err != nil {
		o.t.Fatal(err)
	}
	b = b[:got]
	if checks {
		bad, found = r.Check(shm.OwnWindow(b), off)
		r.End()
	}
	return b, bad, found, o.store.counters.verified.Load() - before
}

func fileSize(t testing.TB, fd int) int64 {
	t.Helper()
	now, err := look(fd)
	if err != nil {
		t.Fatal(err)
	}
	return now.size
}

func random(rng *rand.Rand, n int64) []byte {
	b := make([]byte, 0, n+8)
	for int64(len(b)) < n {
		b = order.AppendUint64(b, rng.Uint64())
	}
	return b[:n]
}

// damage changes a byte on the disk, as far as the times of the file tell, which f has in use.
func damage(t testing.TB, f *File, fd int, off int64) {
	t.Helper()
	unseen(t, f, fd, func() error {
		b := []byte{0}
		if _, err := unix.Pread(fd, b, off); err != nil {
			return err
		}
		b[0] ^= 0x10
		_, err := unix.Pwrite(fd, b, off)
		return err
	})
}

// unseen makes a change that the times of the file do not tell.
func unseen(t testing.TB, f *File, fd int, change func() error) {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		t.Fatal(err)
	}
	if err := change(); err != nil {
		t.Fatal(err)
	}
	times := []unix.Timespec{st.Atim, st.Mtim}
	if err := unix.UtimesNanoAt(unix.AT_FDCWD, "/proc/self/fd/"+itoa(fd), times, 0); err != nil {
		t.Fatal(err)
	}
	now, err := look(fd)
	if err != nil {
		t.Fatal(err)
	}
	// The time of change cannot be set back.
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.stamp.sameBytes(now) {
		f.stamp = now
	}
}

func mustBe(t testing.TB, what string, got, want []byte) {
	t.Helper()
	if !bytes.Equal(got, want) {
		t.Fatalf("%s: %d bytes that differ from %d", what, len(got), len(want))
	}
}
