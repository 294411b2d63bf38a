package journal

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/kv3fs/kv3fs/internal/pageservice"
)

// A page index that was lost is no beginning: clients may still be using the pages that it
// gave out. So a small file beside it says that there was one.

func used(path string) string { return filepath.Join(filepath.Dir(path), "pages.used") }

// checkUnused returns an error if the file at path, which is missing, was there before.
func checkUnused(path string) error {
	if _, err := os.Stat(used(path)); err != nil {
		return nil
	}
	return fmt.Errorf("%w: %s is missing, and %s says that there was one: put it back if it was moved since the last stop; else stop the engines and remove %s to start with an empty cache",
		pageservice.ErrCorrupt, path, used(path), filepath.Base(used(path)))
}

// remember notes that there is a file at path. What says so must not outlive a loss of power
// that undoes the file's name. Without the note, as on a full disk, the next start tries again.
func (j *Journal) remember() {
	if _, err := os.Stat(used(j.path)); err == nil {
		return
	}
	err := syncDirs([]string{filepath.Dir(j.path)})
	if err == nil {
		err = os.WriteFile(used(j.path), []byte("There is a page index in "+FileName+". If it is missing, it was lost.\n"), 0o600)
	}
	if err != nil {
		j.o.Logger.Warn("page index: if its file is lost, the next start will not notice", "file", j.path, "err", err)
	}
}
