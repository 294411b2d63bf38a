package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// A start that fails after the ring server was created leaves no semaphore and no state of restarts behind; what
// else it might leave, TestMain finds.
func TestFailedStartLeavesNothing(t *testing.T) {
	run, err := os.MkdirTemp(shm.Dir, "kv3fs-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(run) })
	dir := t.TempDir()
	data := filepath.Join(dir, "data")
	c := Config{RestartState: filepath.Join(run, "state"), DataDir: data, MountPoint: filepath.Join(data, "mnt"), Mount: fuseserver.Options{Cluster: "test"}, Log: slog.New(slog.DiscardHandler)}
	if err := Run(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), "one contains the other") {
		t.Fatalf("a mount point in the data directory: %v", err)
	}
	files, err := filepath.Glob(semaphoreFile(filepath.Join(c.DataDir, tree.StateName, hostsDir, "*")))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	recorded, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	prefix := strings.TrimSpace(string(recorded))
	if !strings.HasPrefix(prefix, "sem."+ringserver.SemPrefix) {
		t.Fatalf("the names of the semaphores were recorded to begin with %q", prefix)
	}
	left, err := filepath.Glob(filepath.Join(shm.Dir, prefix+"*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %q, %v", left, err)
	}
	if _, err := os.Lstat(filepath.Join(run, "state")); !os.IsNotExist(err) {
		t.Errorf("state of restarts is left behind: %v", err)
	}
}
