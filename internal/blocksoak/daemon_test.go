package blocksoak

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/measure"
	"github.com/kv3fs/kv3fs/usrbio"
)

// daemon is a kv3fs that serves a mount and pages.
type daemon struct {
	data, mount string
	pages       string // address
}

// Times of its pages.
const leaseMs, quarantineMs = 200, 100

// startDaemon starts one until the test ends.
func startDaemon(t *testing.T) *daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a daemon and takes its time")
	}
	if f, err := os.OpenFile("/dev/fuse", os.O_RDWR, 0); err != nil {
		if os.Getenv("KV3FS_REQUIRE_MOUNTS") == "1" {
			t.Fatalf("NOT TESTED, and KV3FS_REQUIRE_MOUNTS=1 wants it tested: %v", err)
		}
		t.Skipf("NOT TESTED: %v", err)
	} else {
		f.Close()
	}
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "kv3fs")
	build := exec.Command("go", "build", "-o", binary, "../../cmd/kv3fs")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build: %v\n%s", err, out)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{data: filepath.Join(dir, "data"), mount: filepath.Join(dir, "mnt"), pages: l.Addr().String()}
	l.Close()
	child, err := measure.StartChild(binary, "serve", "--data", d.data, "--mount", d.mount, "--pages-listen", d.pages,
		// So that pages whose blocks were damaged are used again soon.
		"--pages-lease", fmt.Sprintf("%dms", leaseMs), "--pages-hold", "100ms", "--pages-quarantine", fmt.Sprintf("%dms", quarantineMs))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := child.Stop(30 * time.Second); err != nil {
			t.Errorf("daemon: %v; it said last:\n%s", err, child.LastWords())
		}
		if unix.Unmount(d.mount, unix.MNT_DETACH) == nil {
			t.Errorf("%s was left mounted", d.mount)
		}
	})
	deadline := time.Now().Add(30 * time.Second)
	for {
		m, err := usrbio.Open(d.mount)
		if err == nil {
			m.Close()
			return d
		}
		select {
		case <-child.Ended():
			t.Fatalf("daemon: %v", child.Fate())
		case <-time.After(5 * time.Millisecond): // nobody tells when a mount works
		}
		if time.Now().After(deadline) {
			t.Fatalf("no mount: %v; the daemon said:\n%s", err, child.LastWords())
		}
	}
}
