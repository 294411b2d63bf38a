package index

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// newDirs makes a directory and returns those whose names a power cut could take away:
// it, if it has no book yet, and the parents of all that were made.
func newDirs(dir string) (unsynced []string, err error) {
	if _, err := os.Stat(filepath.Join(dir, FileName)); errors.Is(err, fs.ErrNotExist) {
		unsynced = append(unsynced, dir)
	}
	for at := filepath.Clean(dir); ; at = filepath.Dir(at) {
		if _, err := os.Stat(at); !errors.Is(err, fs.ErrNotExist) || at == filepath.Dir(at) {
			break
		}
		unsynced = append(unsynced, filepath.Dir(at))
	}
	return unsynced, os.MkdirAll(dir, 0o700)
}

// syncDirs makes the names in directories durable.
func syncDirs(dirs []string) error {
	for _, dir := range dirs {
		d, err := os.Open(dir)
		if err != nil {
			return err
		}
		if err := errors.Join(d.Sync(), d.Close()); err != nil {
			return err
		}
	}
	return nil
}
