package journal

import (
	"bytes"
	"context"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// A disk that stays full fails every write of every engine; the log of the service may
// be on the same disk.
func TestAFullDiskIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	full := true
	j, err := Open(filepath.Join(t.TempDir(), "log"), Options{
		Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Commit: func(commit func() error) error {
			if full {
				return syscall.ENOSPC
			}
			return commit()
		},
	}, func([]byte) error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	write := func() error { return j.Begin(func(error) {}, []byte("x")).Wait(context.Background()) }
	for range 100 {
		if write() == nil {
			t.Fatal("it is full")
		}
	}
	full = false
	for range 2 {
		if err := write(); err != nil {
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
