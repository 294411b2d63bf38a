package segment

import (
	"os"
	"syscall"
	"testing"
)

// allocated returns how much a file takes on the disk.
func allocated(t testing.TB, path string) int64 {
	t.Helper()
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	return info.Sys().(*syscall.Stat_t).Blocks * 512
}
