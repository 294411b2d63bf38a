package journal

import (
	"bytes"
	"log/slog"
	"strings"
	"syscall"
	"testing"
)

// A disk that stays full fails every write of every engine, and the log file of the
// service may be on the same disk.
func TestAFullDiskIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	full := true
	j, _ := open(t, t.TempDir(), Options{
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Commit: func(commit func() error) error {
			if full {
				return syscall.ENOSPC
			}
			return commit()
		},
	})
	for range 100 {
		if writeAll(j, "x") == nil {
			t.Fatal("a write on a full disk succeeded")
		}
	}
	full = false
	for range 2 {
		if err := writeAll(j, "x"); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if failed, again := strings.Count(log.String(), "writes fail"), strings.Count(log.String(), "succeed again"); failed != 1 || again != 1 {
		t.Fatalf("%d and %d:\n%s", failed, again, log.String())
	}
}
