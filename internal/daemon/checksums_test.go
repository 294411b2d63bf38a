package daemon

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

// A daemon whose log of checksums cannot be opened serves without, and says so.
func TestServesWithoutItsChecksums(t *testing.T) {
	data := t.TempDir()
	if why := integrity.Supported(data); why != "" {
		t.Skip(why)
	}
	state := filepath.Join(data, tree.StateName)
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(state, sumsDir), nil, 0o600); err != nil { // not a directory
		t.Fatal(err)
	}
	var said bytes.Buffer
	if sums := newChecksums(data, true, false, false, slog.New(slog.NewTextHandler(&said, nil))); sums != nil {
		sums.Close()
		t.Error("checksums in a file that is not a directory")
	}
	if !strings.Contains(said.String(), sumsDir) {
		t.Errorf("it says %q", said.String())
	}
}
