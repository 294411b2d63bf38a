package journal

import (
	"path/filepath"
	"slices"
	"testing"
)

// A loss of power must not undo the name of the file, nor those of its directories.
func TestNewDirectoriesAreSynced(t *testing.T) {
	top := t.TempDir()
	dir := filepath.Join(top, "a", "b")
	got, err := newDirs(filepath.Join(dir, FileName))
	if want := []string{dir, filepath.Join(top, "a"), top}; err != nil || !slices.Equal(got, want) {
		t.Fatal(got, want, err)
	}
	if err := syncDirs(got); err != nil {
		t.Fatal(err)
	}
	j, _ := open(t, dir, Options{})
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err = newDirs(filepath.Join(dir, FileName)); err != nil || len(got) != 0 {
		t.Fatal(got, err)
	}
}
