package journal

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/indextest"
)

func TestIndexOnAJournal(t *testing.T) {
	indextest.Run(t, func(t *testing.T) indextest.Logs { return &files{t: t, dir: t.TempDir()} })
}

// files are the journals of one test, each in a directory of its own.
type files struct {
	t       *testing.T
	dir     string
	crashes int
}

func (f *files) home() string { return filepath.Join(f.dir, strconv.Itoa(f.crashes)) }

func (f *files) New() pageservice.Log { return New(f.home(), Options{}) }

// Crash copies the file while the old journal still runs: kill -9 leaves no more.
func (f *files) Crash() {
	f.t.Helper()
	data, err := os.ReadFile(filepath.Join(f.home(), FileName))
	if err != nil {
		f.t.Fatal(err)
	}
	f.crashes++
	if err := os.Mkdir(f.home(), 0o700); err != nil {
		f.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(f.home(), FileName), data, 0o600); err != nil {
		f.t.Fatal(err)
	}
}
