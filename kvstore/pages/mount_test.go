package pages

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/kv3fs/kv3fs/internal/measure"
	"github.com/kv3fs/kv3fs/internal/transfer"
	"github.com/kv3fs/kv3fs/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/kvstore/kv"
	"github.com/kv3fs/kv3fs/kvstore/storetest"
)

// daemonBinary is kv3fs, built for the test; KV3FS_BIN names one that exists.
func daemonBinary(t *testing.T) string {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a daemon")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err == nil {
		f.Close()
	} else if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
		t.Fatalf("NOT TESTED, and KV3FS_REQUIRE_MOUNTS=1 wants it tested: %v", err)
	} else {
		t.Skipf("NOT TESTED: %v", err)
	}
	if path := os.Getenv("KV3FS_BIN"); path != "" {
		return path
	}
	path := filepath.Join(t.TempDir(), "kv3fs")
	build := exec.Command("go", "build", "-o", path, "github.com/kv3fs/kv3fs/cmd/kv3fs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	return path
}

// rings is an engine that uses the rings of a mount.
func rings(t testing.TB, mount string) transfer.Engine {
	t.Helper()
	e, err := ringio.New(ringio.Options{Mount: mount, Entries: 16, BufferBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The page file is on a kv3fs, and its data goes through the rings.
func TestStoreOnAMount(t *testing.T) {
	d, err := measure.StartDaemon(t.Context(), daemonBinary(t), t.TempDir(), "auto")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Stop(); err != nil {
			t.Error(err)
		}
	})
	// The suite's directories are stood in for by one on the mount, emptied for each.
	var services hosts
	latest, onMount := "", filepath.Join(d.Mount, "suite")
	storetest.Run(t, storetest.Subject{
		Open: func(t testing.TB, dir string, o storetest.Options) kv.Store {
			if dir != latest {
				if err := os.RemoveAll(onMount); err != nil {
					t.Fatal(err)
				}
				if err := os.Mkdir(onMount, 0o700); err != nil {
					t.Fatal(err)
				}
				latest = dir
			}
			s, err := Open(Options{
				URL: services.at(t, dir).url(), File: filepath.Join(onMount, "pages"), Engine: rings(t, d.Mount),
				Layout: o.Layout, Namespace: o.Namespace, CapacityBytes: int64(4*o.Blocks) * strideOf(o.Layout),
			})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Durable: true, Damage: func(t testing.TB, _ string, seed uint64) { damage(t, onMount, seed) },
		Verified: true, OneNamespace: true, Seeds: 12,
	})
}
