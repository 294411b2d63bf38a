package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/shm"
)

// A start that fails after the ring server was created leaves no semaphore behind; what
// else it might leave, TestMain finds.
func TestFailedStartLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	if err := os.Symlink(dir, link); err != nil {
		t.Fatal(err)
	}
	c := Config{DataDir: filepath.Join(dir, "data"), MountPoint: link, Log: slog.New(slog.DiscardHandler)}
	if err := Run(t.Context(), c, nil); err == nil || !strings.Contains(err.Error(), "symbolic link") {
		t.Fatalf("a mount point that is a link: %v", err)
	}
	host, err := hostDir(c.DataDir)
	if err != nil {
		t.Fatal(err)
	}
	names, err := os.ReadFile((&state{dir: host}).semaphoreFile())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Fields(string(names)); len(got) != 3 {
		t.Errorf("%d semaphores were recorded, want 3: %q", len(got), got)
	}
	for name := range strings.FieldsSeq(string(names)) {
		if _, err := os.Stat(filepath.Join(shm.Dir, name)); !os.IsNotExist(err) {
			t.Errorf("%s is left behind: %v", name, err)
		}
	}
}
