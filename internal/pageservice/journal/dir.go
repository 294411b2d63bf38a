package journal

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// newDirs makes the directory of a file. It returns the directories in which a loss of
// power could still undo a new name: that of the file, if there is no file yet, and the
// parents of all that were made.
func newDirs(file string) (unsynced []string, err error) {
	dir := filepath.Dir(file)
	if _, err := os.Stat(file); errors.Is(err, fs.ErrNotExist) {
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
