package daemon

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestDataDirectoryVanishes(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	w, err := watchData(dir, time.Hour, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer w.end()
	expect := func(lines int, text string) {
		t.Helper()
		w.look()
		if got := log.String(); strings.Count(got, "\n") != lines || !strings.Contains(got, text) {
			t.Errorf("the log is\n%s; want %d lines with %q", got, lines, text)
		}
	}
	expect(0, "")
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	expect(1, "deleted or renamed")
	expect(1, "deleted or renamed") // once a minute
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	expect(2, "replaced by another")
	if err := os.Remove(dir); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(dir+".old", dir); err != nil {
		t.Fatal(err)
	}
	expect(2, "")
}

func TestDataDirectoryIsFull(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		t.Skipf("NOT TESTED: a small disk: %v", err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	var log bytes.Buffer
	w, err := watchData(dir, time.Hour, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	defer w.end()
	if w.look(); log.Len() > 0 {
		t.Errorf("an empty disk: %s", log.String())
	}
	if err := os.WriteFile(filepath.Join(dir, "f"), make([]byte, 5<<20), 0o644); !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	for range 2 { // once a minute
		w.look()
	}
	if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "disk is full") || !strings.Contains(got, dir) {
		t.Errorf("a full disk: %s", got)
	}
}
