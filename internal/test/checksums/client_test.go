package checksums

import (
	"context"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/seed"
	"github.com/kv3fs/kv3fs/usrbio"
)

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

const (
	rangeBytes = 128 << 10
	iovBytes   = 2 << 20
)

// client uses the rings of a mount.
type client struct {
	t         testing.TB
	m         *usrbio.Mount
	iov       *usrbio.Iov
	read, wri *usrbio.Ring
}

func newClient(t testing.TB, mount string) *client {
	t.Helper()
	c := &client{t: t}
	var err error
	try := func(e error) {
		t.Helper()
		if e != nil {
			t.Fatal(e)
		}
	}
	c.m, err = usrbio.Open(t.Context(), mount)
	try(err)
	c.iov, err = c.m.NewIov(t.Context(), iovBytes, usrbio.IovOptions{})
	try(err)
	c.read, err = c.m.NewRing(t.Context(), usrbio.RingOptions{Entries: 8})
	try(err)
	c.wri, err = c.m.NewRing(t.Context(), usrbio.RingOptions{Entries: 8, Write: true})
	try(err)
	return c
}

// close ends the client's registrations; those of a daemon that was killed are gone.
func (c *client) close() { _ = c.m.Close(context.Background()) }

func (c *client) do(ring *usrbio.Ring, f *os.File, off, n int64) int64 {
	c.t.Helper()
	file, err := c.m.Register(c.t.Context(), f)
	if err != nil {
		c.t.Fatal(err)
	}
	defer file.Close(context.Background())
	request := []usrbio.Request{{File: file, FileOffset: off, Iov: c.iov, Bytes: n}}
	if err := ring.Do(c.t.Context(), request); err != nil {
		c.t.Fatal(err)
	}
	return request[0].Result
}

// ringWrite writes b, of at most iovBytes, through a ring.
func (c *client) ringWrite(f *os.File, b []byte, off int64) {
	c.t.Helper()
	copy(c.iov.Bytes(), b)
	if n := c.do(c.wri, f, off, int64(len(b))); n != int64(len(b)) {
		c.t.Fatalf("a ring's write of %d bytes at %d of %s: %d", len(b), off, f.Name(), n)
	}
}

// ringRead returns what a ring reads, and EIO where it is damaged.
func (c *client) ringRead(f *os.File, off, n int64) ([]byte, error) {
	c.t.Helper()
	got := c.do(c.read, f, off, n)
	switch {
	case got == -int64(syscall.EIO):
		return nil, syscall.EIO
	case got < 0:
		c.t.Fatalf("a ring's read of %d bytes at %d of %s: %v", n, off, f.Name(), syscall.Errno(-got))
	}
	return c.iov.Bytes()[:got], nil
}

// needFineTimes skips a test of damage that nobody has read before: where two changes in a row may have the same time, such
// damage cannot be told from a change.
func needFineTimes(t *testing.T, dir string) {
	t.Helper()
	if !integrity.FineTimes(dir) {
		t.Skipf("changes of files in %s do not each get a time of their own: Linux has that since 6.13, on most local file systems", dir)
	}
}

// waitForWriters returns once nobody has a file of the data directory open or mapped for writing: the kernel tells the daemon a
// little later that a client has closed it.
func waitForWriters(t *testing.T, path string) {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	lease := func() error {
		if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
			return err
		}
		_, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_UNLCK)
		return err
	}
	const atMost = 5 * time.Minute
	for began := time.Now(); lease() != nil; time.Sleep(time.Millisecond) {
		if time.Since(began) > atMost {
			t.Fatalf("%s is still open for writing: %v", path, lease())
		}
	}
}

func random(rng *rand.Rand, n int64) []byte {
	b := make([]byte, 0, n+8)
	for int64(len(b)) < n {
		b = binary.LittleEndian.AppendUint64(b, rng.Uint64())
	}
	return b[:n]
}

func newRand(t testing.TB) *rand.Rand {
	n := seed.New(t)
	return rand.New(rand.NewPCG(n, n))
}

// places returns options for a daemon on a disk and for one in memory.
func places(t *testing.T) map[string]daemontest.Options {
	t.Helper()
	daemontest.NeedMounts(t)
	memory, err := os.MkdirTemp(shm.Dir, "kv3fs-checksums-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(memory) })
	data := filepath.Join(memory, "data")
	if err := os.Mkdir(data, 0o777); err != nil {
		t.Fatal(err)
	}
	var onDisk, passed string
	if at := disk(t); at != "" {
		onDisk, passed = filepath.Join(at, "disk"), filepath.Join(at, "kernel")
		for _, dir := range []string{onDisk, passed} {
			if err := os.Mkdir(dir, 0o777); err != nil {
				t.Fatal(err)
			}
		}
	}
	flags := []string{"--drain", "1s", "--checksums", "on"}
	return map[string]daemontest.Options{
		"memory": {Flags: flags, Data: data},
		"disk":   {Flags: append(flags, "--passthrough", "off"), Data: onDisk},
		"kernel": {Flags: flags, Data: passed},
	}
}

// store writes to a mapping whose file may have become shorter.
func store(b []byte, rng *rand.Rand) {
	_ = shm.Guard(func() { b[rng.IntN(len(b))]++ })
}

func inMemory(dir string) bool {
	var st unix.Statfs_t
	return unix.Statfs(dir, &st) == nil && st.Type == unix.TMPFS_MAGIC
}
