// Package sharedtrace finds the trace that tests of the eviction policy are held against. It is
// too large to be part of the project and not ours to give away.
package sharedtrace

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// place is where the trace lies, seen from the directory that the module's root is in.
const place = "shared/data/conversation_trace.jsonl"

// Path returns the path of Mooncake's conversation trace, or of the one that KV3FS_TRACES names;
// ours says which. It skips the test where there is neither.
func Path(t testing.TB) (path string, ours bool) {
	t.Helper()
	if path := os.Getenv("KV3FS_TRACES"); path != "" {
		return path, false
	}
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	path, ok := find(dir)
	if !ok {
		t.Skipf("KV3FS_TRACES names no trace, and there is no ../%s beside the module", place)
	}
	return path, true
}

// find looks for the trace beside the module that a directory is in, or beside the repository
// whose worktree the module is.
func find(dir string) (path string, ok bool) {
	root := dir
	for !exists(filepath.Join(root, "go.mod")) {
		if root == filepath.Dir(root) {
			return "", false
		}
		root = filepath.Dir(root)
	}
	roots := []string{root}
	// In a worktree, .git is a file with the line "gitdir: REPOSITORY/.git/worktrees/NAME".
	if b, err := os.ReadFile(filepath.Join(root, ".git")); err == nil {
		at, isLink := strings.CutPrefix(strings.TrimSpace(string(b)), "gitdir: ")
		if repository, _, inside := strings.Cut(at, "/.git/worktrees/"); isLink && inside {
			roots = append(roots, repository)
		}
	}
	for _, root := range roots {
		if path := filepath.Join(filepath.Dir(root), place); exists(path) {
			return path, true
		}
	}
	return "", false
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
