package soak

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/usrbio"
)

// residentLimitBytes is the bound for a daemon that has seen a million files, which
// the kernel then forgot.
const residentLimitBytes = 100 << 20

func TestMain(m *testing.M) { os.Exit(daemontest.Main(m)) }

// start runs the real daemon, with its data in memory, until the test ends.
func start(t *testing.T) *daemontest.Daemon {
	t.Helper()
	if os.Geteuid() != 0 {
		daemontest.NotTested(t, "dropping the kernel's caches needs root")
	}
	data, err := os.MkdirTemp("/dev/shm", "kv3fs-soak-")
	if err != nil {
		t.Fatal(err)
	}
	var d *daemontest.Daemon
	t.Cleanup(func() {
		os.RemoveAll(data)
		if d != nil && d.Err() != nil {
			t.Errorf("daemon: %v", d.Err())
		}
	})
	d = daemontest.ServeWith(t, daemontest.Options{Data: data, Flags: []string{"--drain", "2s"}})
	return d
}

// residentBytes returns the resident memory of a process.
func residentBytes(t *testing.T, pid int) int64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Fatal(err)
	}
	pages, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return pages * int64(os.Getpagesize())
}

// settlesBelow waits until the daemon has returned memory to the system.
func settlesBelow(t *testing.T, pid int, limitBytes int64) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(100 * time.Millisecond) {
		resident := residentBytes(t, pid)
		if resident < limitBytes {
			t.Logf("%.1f MiB resident, the limit is %.1f", float64(resident)/(1<<20), float64(limitBytes)/(1<<20))
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%.1f MiB resident, want less than %.1f", float64(resident)/(1<<20), float64(limitBytes)/(1<<20))
		}
	}
}

// The daemon's memory does not depend on the number of files it has ever seen.
// KV3FS_SOAK_FILES=1000000 runs the full number (about five minutes).
func TestMemoryAfterManyFiles(t *testing.T) {
	files := 100_000
	if s := os.Getenv("KV3FS_SOAK_FILES"); s != "" {
		var err error
		if files, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	} else if testing.Short() {
		files = 10_000
	}
	daemon := start(t)
	before := residentBytes(t, daemon.PID())
	t.Logf("%.1f MiB resident before", float64(before)/(1<<20))
	limit := before + 40<<20 // 100,000 files that are known take 100 MiB; what stays is Go's heap, which shrinks slowly
	if files > 100_000 {
		limit = residentLimitBytes
	}
	buf := make([]byte, 64)
	for i := range files {
		dir := filepath.Join(daemon.Mount, strconv.Itoa(i/1000))
		if i%1000 == 0 {
			if err := os.Mkdir(dir, 0o755); err != nil {
				t.Fatal(err)
			}
		}
		fd, err := unix.Open(filepath.Join(dir, strconv.Itoa(i)), unix.O_RDWR|unix.O_CREAT, 0o644)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := unix.Pwrite(fd, buf, 0); err != nil {
			t.Fatal(err)
		}
		if n, err := unix.Pread(fd, buf, 0); n != len(buf) || err != nil {
			t.Fatal(n, err)
		}
		unix.Close(fd)
	}
	t.Logf("%.1f MiB resident with %d files known to the kernel", float64(residentBytes(t, daemon.PID()))/(1<<20), files)
	if err := os.WriteFile("/proc/sys/vm/drop_caches", []byte("2"), 0o200); err != nil {
		t.Fatal(err)
	}
	settlesBelow(t, daemon.PID(), limit)
}

// The daemon's memory does not depend on the size of the iovs, or on how much has
// moved through them.
func TestMemoryAfterLargeIov(t *testing.T) {
	daemon := start(t)
	m, err := usrbio.Open(t.Context(), daemon.Mount)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close(t.Context())
	const size = 512 << 20
	iov, err := m.NewIov(t.Context(), size, usrbio.IovOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer iov.Close(t.Context())
	file, err := os.Create(filepath.Join(daemon.Mount, "f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if err := file.Truncate(size); err != nil {
		t.Fatal(err)
	}
	f, err := m.Register(t.Context(), file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close(t.Context())
	ring, err := m.NewRing(t.Context(), usrbio.RingOptions{Entries: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer ring.Close(t.Context())
	var requests []usrbio.Request
	for off := int64(0); off < size; off += 4 << 20 {
		requests = append(requests, usrbio.Request{File: f, FileOffset: off, Iov: iov, IovOffset: off, Bytes: 4 << 20})
	}
	const poison = 0xa5
	ends := func(q usrbio.Request) [2]*byte {
		return [2]*byte{&iov.Bytes()[q.IovOffset], &iov.Bytes()[q.IovOffset+q.Bytes-1]}
	}
	for _, q := range requests {
		for _, b := range ends(q) {
			*b = poison
		}
	}
	if err := ring.Do(t.Context(), requests); err != nil {
		t.Fatal(err)
	}
	for _, q := range requests {
		for _, b := range ends(q) {
			if *b != 0 { // the file is a hole
				t.Fatalf("what is at %d of the file was not read: byte %#x", q.FileOffset, *b)
			}
		}
	}
	t.Logf("%.1f MiB resident after %d MiB through one iov", float64(residentBytes(t, daemon.PID()))/(1<<20), size>>20)
	settlesBelow(t, daemon.PID(), 50<<20)
}
