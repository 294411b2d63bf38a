package erase_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/operator/internal/erase"
)

func withFiles(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, f := range files {
		path := filepath.Join(dir, f)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var all []string
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// All that a daemon's directory has goes; what a link leads to stays.
func TestDataDirectory(t *testing.T) {
	elsewhere := withFiles(t, "precious")
	dir := withFiles(t, ".kv3fs/hosts/a/index", "model/block", "file")
	if err := os.Symlink(elsewhere, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if err := erase.Directory(dir); err != nil {
		t.Fatal(err)
	}
	if left := names(t, dir); len(left) != 0 {
		t.Errorf("%v is left", left)
	}
	if left := names(t, elsewhere); len(left) != 1 {
		t.Errorf("what a link led to is gone: %v", left)
	}
	if err := erase.Directory(dir); err != nil {
		t.Errorf("again: %v", err)
	}
}

// A directory that no daemon has used is somebody else's.
func TestForeignDirectory(t *testing.T) {
	dir := withFiles(t, "precious")
	if err := erase.Directory(dir); err != nil {
		t.Fatal(err)
	}
	if len(names(t, dir)) != 1 {
		t.Error("the file of a directory without .kv3fs was removed")
	}
	dir = withFiles(t, "precious", ".kv3fs")
	if err := erase.Directory(dir); err == nil || len(names(t, dir)) != 2 {
		t.Errorf("%v, and %v is left, where .kv3fs is a file", err, names(t, dir))
	}
	if err := erase.Directory(filepath.Join(dir, "nothing")); err != nil {
		t.Errorf("a directory that is not there: %v", err)
	}
}

// A directory that a daemon serves, whoever made it, loses nothing.
func TestServed(t *testing.T) {
	for _, held := range []string{".kv3fs/boots/of-this-kernel", ".kv3fs/hosts/a/lock"} {
		dir := withFiles(t, ".kv3fs/boots/of-this-kernel", ".kv3fs/hosts/a/lock", "model/block")
		daemon, err := os.OpenFile(filepath.Join(dir, held), os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.Flock(int(daemon.Fd()), syscall.LOCK_EX); err != nil {
			t.Fatal(err)
		}
		if err := erase.Directory(dir); err == nil || !strings.Contains(err.Error(), held) || len(names(t, dir)) != 2 {
			t.Errorf("%s is held: %v, and %v is left", held, err, names(t, dir))
		}
		daemon.Close()
		if err := erase.Directory(dir); err != nil || len(names(t, dir)) != 0 {
			t.Errorf("the daemon has ended: %v, and %v is left", err, names(t, dir))
		}
	}
}

// What is mounted in the directory is not a cache's.
func TestMountWithin(t *testing.T) {
	dir := withFiles(t, ".kv3fs/state", "with space/file")
	point := filepath.Join(dir, "with space")
	if err := syscall.Mount("tmpfs", point, "tmpfs", 0, ""); err != nil {
		t.Skip("mounting needs root: ", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(point, 0); err != nil {
			t.Error(err)
		}
	})
	if err := os.WriteFile(filepath.Join(point, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := erase.Directory(dir); err == nil || len(names(t, point)) != 1 {
		t.Errorf("%v, and %v is left in the mount", err, names(t, point))
	}
}
