package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// TestMain also lets the test binary run as a probe, and as a process with caches.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "caches" {
		if err := caches(os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && os.Args[1] == "probe" {
		if err := Probe(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Setenv("GORACE", "atexit_sleep_ms=0") // for the probes, which would all linger
	os.Exit(daemontest.Main(m))
}

// fixture returns a host built from files. Its /dev/shm has 24 GiB.
func fixture(t *testing.T, files map[string]string) host.Host {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return host.Host{Root: root, EUID: 0, LookupEnv: environment(nil), Statfs: sizes(24<<30, 24<<30)}
}

func environment(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func sizes(size, free int64) func(string, *unix.Statfs_t) error {
	return func(_ string, st *unix.Statfs_t) error {
		st.Bsize, st.Blocks, st.Bavail = 4096, uint64(size/4096), uint64(free/4096)
		return nil
	}
}

func local() *Options { return on(host.Local()) }

func on(h host.Host) *Options {
	return &Options{Host: h, Probe: []string{os.Args[0], "probe"}}
}

// want fails unless a finding has this ID and status. A finding worse than OK must say
// what is needed.
func want(t *testing.T, what string, f Finding, id string, s Status) {
	t.Helper()
	if f.ID != id || f.Status != s || f.Found == "" {
		t.Errorf("%s: %v, %+v; want %s, %v", what, f.Status, f, id, s)
	}
	if (f.Status == OK) != (f.Needed == "") && f.Fix == "" && f.Status != Note {
		t.Errorf("%s: %+v must say what is needed unless it is OK, and only then", what, f)
	}
	if f.Status == OK && f.Fix != "" {
		t.Errorf("%s: OK, but has a fix: %+v", what, f)
	}
}
