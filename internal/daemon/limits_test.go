package daemon

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/internal/host"
)

func TestDefaultOfMappedBytes(t *testing.T) {
	for _, c := range []struct {
		meminfo string
		set     int64
		want    int64
	}{
		{"MemTotal: 1048576 kB\n", 0, 32 << 30},
		{"MemTotal: 1048576 kB\n", 77, 77},
		{"MemTotal: 4294967296 kB\n", 0, 32 << 40}, // 4 TiB
		{"", 0, 32 << 40},
	} {
		root := t.TempDir()
		if err := os.MkdirAll(filepath.Join(root, "proc"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, "proc/meminfo"), []byte(c.meminfo), 0o644); err != nil {
			t.Fatal(err)
		}
		if got := (Limits{MappedBytes: c.set}).mappedBytes(host.Host{Root: root}); got != c.want {
			t.Errorf("%q, limit %d: %d, want %d", c.meminfo, c.set, got, c.want)
		}
	}
}
