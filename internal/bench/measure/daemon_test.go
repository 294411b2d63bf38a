package measure

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestDaemonThatDoesNotStart(t *testing.T) {
	scratch := t.TempDir()
	bin := filepath.Join(scratch, "broken")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\necho it is broken: $@ >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := StartDaemon(t.Context(), bin, scratch, "auto")
	if err == nil || !strings.Contains(err.Error(), "--pages-listen off") || !strings.Contains(err.Error(), "it is broken") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
	if left, _ := filepath.Glob(filepath.Join(scratch, "kv3fs-bench-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
	if _, err := StartDaemon(t.Context(), "/nonexistent", scratch, "auto"); err == nil {
		t.Error("started nothing")
	}
	if left, _ := filepath.Glob(filepath.Join(scratch, "kv3fs-bench-*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestPageServiceThatDoesNotStart(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	bin := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(bin, []byte("#!/bin/sh\necho it is broken >&2\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := StartPageService(t.Context(), bin, t.TempDir())
	if err == nil || strings.Count(err.Error(), "it is broken") != 1 {
		t.Errorf("got %v", err)
	}
	if _, err := StartPageService(t.Context(), "/nonexistent", t.TempDir()); err == nil {
		t.Error("started nothing")
	}
	if left, _ := os.ReadDir(os.TempDir()); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}
