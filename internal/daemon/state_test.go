package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// A data directory is served once on a host; the second daemon's error names the first.
func TestOneDaemonOnAHost(t *testing.T) {
	dir := t.TempDir()
	first, err := openState(dir)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := openState(dir); err == nil || !strings.Contains(err.Error(), "served already, by process") {
		t.Errorf("second daemon: %v", err)
	}
	first.close()
	again, err := openState(dir)
	if err != nil {
		t.Fatalf("after the first ended: %v", err)
	}
	again.close()
}

// The semaphores of a killed daemon are removed, and nothing else that the file names.
func TestLeftovers(t *testing.T) {
	dir := t.TempDir()
	killed, err := openState(dir)
	if err != nil {
		t.Fatal(err)
	}
	left, err := shm.CreateSem(ringserver.SemPrefix+wire.NewUUID().String(), uint32(os.Geteuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer left.Close(true)
	innocent, err := shm.CreateSem("kv3fs-test-"+wire.NewUUID().String(), uint32(os.Geteuid()))
	if err != nil {
		t.Fatal(err)
	}
	defer innocent.Close(true)
	name := filepath.Base(left.Path())
	// A prefix that is too short could mean the semaphores of another daemon.
	others := []string{filepath.Base(innocent.Path()), "/dev/shm/../shm/x", "sem." + ringserver.SemPrefix, name[:len("sem."+ringserver.SemPrefix)+8]}
	if err := killed.noteSemaphores(strings.Join(append(others, name[:len(name)-17]), " ")); err != nil {
		t.Fatal(err)
	}
	killed.close()
	next, err := openState(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer next.close()
	if n := next.removeLeftovers(); n != 1 {
		t.Errorf("%d objects removed, want 1", n)
	}
	if _, err := os.Stat(left.Path()); !os.IsNotExist(err) {
		t.Errorf("the leftover is still there: %v", err)
	}
	if _, err := os.Stat(innocent.Path()); err != nil {
		t.Error(err)
	}
}

// A state directory that other users can write to is refused.
func TestPlantedState(t *testing.T) {
	dir := t.TempDir()
	planted := filepath.Join(dir, tree.StateName)
	if err := os.Mkdir(planted, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(planted, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := openState(dir); err == nil || !strings.Contains(err.Error(), "somebody else") {
		t.Errorf("planted state directory: %v", err)
	}
}

// The mount point is the path that the kernel will show (usrbio.md 1.2).
func TestMountPoint(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	real := filepath.Join(dir, "real")
	if err := os.Mkdir(real, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(real, filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	if got, err := mountPoint(filepath.Join(dir, "link", "mnt")); err != nil || got != filepath.Join(real, "mnt") {
		t.Errorf("below a link: %q, %v", got, err)
	}
	if _, err := mountPoint(filepath.Join(dir, "link")); err == nil || !strings.Contains(err.Error(), real) {
		t.Errorf("a link itself: %v", err)
	}
	if _, err := mountPoint(filepath.Join(dir, "missing", "mnt")); err == nil {
		t.Error("a missing parent was accepted")
	}
}
