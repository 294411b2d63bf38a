package sharedtrace

import (
	"os"
	"path/filepath"
	"testing"
)

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// It is found from any package, in the repository and in worktrees elsewhere, and nowhere else.
func TestFind(t *testing.T) {
	top := t.TempDir()
	at := func(path string) string { return filepath.Join(top, path) }
	trace := at("a/" + place)
	write(t, trace, "")
	write(t, at("a/main/go.mod"), "module m\n")
	write(t, at("a/main/.git/HEAD"), "")
	write(t, at("a/main/x/y/y.go"), "package y\n")
	write(t, at("b/tree/go.mod"), "module m\n")
	write(t, at("b/tree/.git"), "gitdir: "+at("a/main/.git/worktrees/tree")+"\n")
	write(t, at("b/tree/x/x.go"), "package x\n")
	write(t, at("b/clone/go.mod"), "module m\n")
	write(t, at("b/odd/go.mod"), "module m\n")
	write(t, at("b/odd/.git"), "gitdir: elsewhere")
	for from, want := range map[string]string{
		"a/main": trace, "a/main/x/y": trace, "b/tree": trace, "b/tree/x": trace,
		"b/clone": "", "b/odd": "", "a": "",
	} {
		if got, ok := find(at(from)); got != want || ok != (want != "") {
			t.Errorf("from %s: %q, %v; want %q", from, got, ok, want)
		}
	}
}
