package index

import (
	"os"
	"testing"

	"github.com/kv3fs/kv3fs/internal/pageservice/journal"
	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

func TestMain(m *testing.M) { os.Exit(leaktest.Main(m)) }

// open opens an index on a journal in dir.
func open(dir string, o Options) (*Index, error) { return openWith(dir, journal.Options{}, o) }

func openWith(dir string, disk journal.Options, o Options) (*Index, error) {
	return Open(journal.New(dir, disk), o)
}
