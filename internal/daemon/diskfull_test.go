package daemon

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// However many writes fail, a full disk is said once, and once that it has room again.
func TestDiskFull(t *testing.T) {
	var out bytes.Buffer
	d := newDiskFull(newDataSpace("/data"), slog.New(slog.NewTextHandler(&out, nil)))
	now := time.Now()
	look := func(s space, later time.Duration) (said string) {
		out.Reset()
		now = now.Add(later)
		d.found(s, now)
		return out.String()
	}
	roomy, full, noFiles := space{bytes: 1 << 40, freeBytes: 1 << 39, files: 100, freeFiles: 50}, space{bytes: 1 << 40, files: 100, freeFiles: 50}, space{bytes: 1 << 40, freeBytes: 1 << 39, files: 100}
	silent := func(what, said string) {
		t.Helper()
		if said != "" {
			t.Errorf("%s: %s", what, said)
		}
	}
	says := func(want, said string) {
		t.Helper()
		if !strings.Contains(said, want) || strings.Count(said, "\n") != 1 {
			t.Errorf("%q in place of %s", said, want)
		}
	}
	silent("room", look(roomy, 0))
	says("is full", look(full, time.Second))
	for range 100 {
		d.failed()
		silent("still full", look(full, time.Second))
	}
	silent("just room", look(roomy, time.Second)) // writes may still fail
	silent("half room", look(space{bytes: 1 << 40, freeBytes: leastFree + 1, files: 1, freeFiles: 1}, time.Hour))
	says("has room again", look(roomy, time.Hour))
	if !strings.Contains(out.String(), "failed_ring_writes=100") {
		t.Error(out.String())
	}
	says("is full", look(noFiles, time.Second))
	says("has room again", look(roomy, time.Second))
	d.failed()
	says("although its disk has room", look(roomy, time.Second))
	silent("a while later", look(roomy, time.Second))
	says("has room again", look(roomy, time.Hour))
	silent("room", look(roomy, time.Hour))
}

// A disk that is really full, and has room again.
func TestSmallDiskFills(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8m"); err != nil {
		t.Skipf("NOT TESTED: a small disk: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	lines := make(chan string, 16)
	d := newDiskFull(newDataSpace(dir), slog.New(slog.NewTextHandler(writerTo(lines), nil)))
	ctx, end := context.WithCancel(t.Context())
	var running sync.WaitGroup
	defer running.Wait()
	defer end()
	running.Go(func() { d.run(ctx) })
	await := func(want string) {
		t.Helper()
		select {
		case line := <-lines:
			if !strings.Contains(line, want) || !strings.Contains(line, dir) {
				t.Errorf("%q in place of %q", line, want)
			}
		case <-time.After(time.Minute):
			t.Fatalf("it never said %q", want)
		}
	}
	file := filepath.Join(dir, "f")
	if err := os.WriteFile(file, make([]byte, 9<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	await("is full")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	await("has room again")
}

type writerTo chan<- string

func (w writerTo) Write(line []byte) (int, error) {
	w <- string(line)
	return len(line), nil
}
