package files_test

import (
	"fmt"
	"testing"

	"golang.org/x/sys/unix"
)

// mountSmall mounts a file system of so many bytes until the test ends.
func mountSmall(t *testing.T, sizeBytes int) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, fmt.Sprintf("size=%d", sizeBytes)); err != nil {
		t.Skipf("NOT TESTED: no small file system: %v", err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}
