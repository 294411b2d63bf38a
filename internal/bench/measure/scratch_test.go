package measure

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// However long the path of the directory for temporary files is, a socket finds a place.
func TestSocketDir(t *testing.T) {
	for _, n := range []int{1, 30, 200} {
		tmp := filepath.Join(t.TempDir(), strings.Repeat("x", n))
		if err := os.Mkdir(tmp, 0o700); err != nil {
			t.Fatal(err)
		}
		t.Setenv("TMPDIR", tmp)
		dir, err := newSocketDir()
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("unix", filepath.Join(dir, "pages"))
		if err != nil {
			t.Errorf("below %d bytes: %v", len(tmp), err)
		} else {
			_ = l.Close()
		}
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	}
}
