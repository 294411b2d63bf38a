package index

import (
	"path/filepath"
	"slices"
	"testing"
)

// A power cut must not take the name of the book, nor those of its directories.
func TestNewDirectoriesAreSynced(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "a", "b")
	got, err := newDirs(dir)
	if want := []string{dir, filepath.Join(top, "a"), top}; err != nil || !slices.Equal(got, want) {
		t.Fatal(got, want, err)
	}
	if err := syncDirs(got); err != nil {
		t.Fatal(err)
	}
	b, err := Open(dir, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err = newDirs(dir); err != nil || len(got) != 0 {
		t.Fatal(got, err)
	}
}
