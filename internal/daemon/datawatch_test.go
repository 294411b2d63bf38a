package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
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
