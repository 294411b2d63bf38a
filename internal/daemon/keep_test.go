package daemon

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/keeper/lease"
)

// logged is a log that a test reads while it is written.
type logged struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logged) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

// await waits until a text has come so often, each time after the one before.
func (l *logged) await(t *testing.T, text string, times int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(5 * time.Millisecond) {
		l.mu.Lock()
		log := l.text.String()
		l.mu.Unlock()
		if strings.Count(log, text) >= times {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%q does not come %d times:\n%s", text, times, log)
		}
	}
}

// oldBlocks makes blocks of 64 KiB that nobody has used for hours.
func oldBlocks(t *testing.T, dir string, from, to int) {
	t.Helper()
	at := time.Now().Add(-5 * time.Hour)
	for n := from; n < to; n++ {
		path := filepath.Join(dir, fmt.Sprintf("%02x/%02x%030x", n%16, n%16, n))
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, make([]byte, 64<<10), 0o600), os.Chtimes(path, at, at)); err != nil {
			t.Fatal(err)
		}
	}
}

func blocksIn(t *testing.T, dir string) int {
	t.Helper()
	all, err := filepath.Glob(filepath.Join(dir, "??/*"))
	if err != nil {
		t.Fatal(err)
	}
	return len(all)
}

// keepFor runs a keeper of a directory until the test calls stop.
func keepFor(t *testing.T, dir string) (log *logged, stop func()) {
	t.Helper()
	log = &logged{}
	c := KeepConfig{
		Dir: dir, Keeping: Keeping{Capacity: keeper.Limit{Bytes: 1 << 20}}, Lease: 3 * time.Second, RefreshEvery: time.Second,
		Log: slog.New(slog.NewTextHandler(log, nil)),
	}
	d, err := openKept(&c, "")
	if err != nil {
		t.Fatal(err)
	}
	s := &keepService{KeepConfig: c, me: lease.Holder{Identity: "test", Host: "test"}, back: 10 * time.Millisecond}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, d) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(stop)
	return log, stop
}

// A directory that is renamed, replaced, covered by another or unmounted is not kept until it is back, and nothing that
// is in its place is touched.
func TestKeptDirectoryVanishes(t *testing.T) {
	top := t.TempDir()
	dir, other := filepath.Join(top, "dir"), filepath.Join(top, "other")
	oldBlocks(t, dir, 0, 40)
	oldBlocks(t, other, 0, 40)
	log, stop := keepFor(t, dir)
	const kept, away, waits, back = "removed files to make room", "the directory is away: nothing", "waiting for the directory", "the directory is back"
	log.await(t, kept, 1)

	rename := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	rename(dir, dir+".away")
	log.await(t, away, 1)
	log.await(t, waits, 1)
	rename(other, dir)
	time.Sleep(50 * time.Millisecond) // no event says that it has looked; without it, the test checks less
	rename(dir, other)
	oldBlocks(t, dir+".away", 40, 80) // before it is kept again: what comes later has its grace period from then
	rename(dir+".away", dir)
	log.await(t, back, 1)
	if n := blocksIn(t, other); n != 40 {
		t.Errorf("%d of 40 files are left in a directory that was in its place", n)
	}
	// It is the same that is kept again.
	log.await(t, "this host has the lease", 2)
	for end := time.Now().Add(time.Minute); blocksIn(t, dir) > 16; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d files are left", blocksIn(t, dir))
		}
	}
	if err := unix.Mount(other, dir, "", unix.MS_BIND, ""); err != nil {
		t.Logf("cannot cover it: %v", err)
	} else {
		log.await(t, away, 2)
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Fatal(err)
		}
		log.await(t, back, 2)
	}
	rename(filepath.Join(dir, ".kv3fs-keep"), filepath.Join(top, "state"))
	log.await(t, "its state", 1)
	stop()
	if n := blocksIn(t, other); n != 40 {
		t.Errorf("%d of 40 files are left in a directory that was in its place", n)
	}
	// A keeper that is started anew takes it.
	log, stop = keepFor(t, dir)
	log.await(t, "this host has the lease", 1)
	stop()
}

// An unmounted file system is known again when it is mounted again, though it has another number, and its empty mount
// point is no empty cache.
func TestKeptDirectoryUnmounted(t *testing.T) {
	top := t.TempDir()
	disk, dir := filepath.Join(top, "disk"), filepath.Join(top, "mnt")
	if err := errors.Join(os.Mkdir(disk, 0o700), os.Mkdir(dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	mount := func() {
		t.Helper()
		if err := unix.Mount(disk, dir, "", unix.MS_BIND, ""); err != nil {
			t.Skipf("cannot mount: %v", err)
		}
	}
	oldBlocks(t, disk, 0, 40)
	mount()
	unmounted := false
	t.Cleanup(func() {
		if !unmounted {
			_ = unix.Unmount(dir, unix.MNT_DETACH)
		}
	})
	log, stop := keepFor(t, dir)
	log.await(t, "removed files to make room", 1)
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	log.await(t, "waiting for the directory", 1)
	if entries, err := os.ReadDir(dir); err != nil || len(entries) > 0 {
		t.Errorf("the mount point has got %v, %v", entries, err)
	}
	mount()
	log.await(t, "the directory is back", 1)
	log.await(t, "this host has the lease", 2)
	stop()
	if err := unix.Unmount(dir, 0); err != nil {
		t.Errorf("it is held after the stop: %v", err)
	}
	unmounted = true
}
