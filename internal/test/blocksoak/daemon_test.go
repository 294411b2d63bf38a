package blocksoak

import (
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// daemon is a kv3fs that serves a mount and pages.
type daemon struct {
	data, mount string
	pages       string // address
}

// Times of its pages. Those of damaged blocks are used again soon.
const lease, quarantine = 200 * time.Millisecond, 100 * time.Millisecond

// startDaemon starts one until the test ends.
func startDaemon(t *testing.T) *daemon {
	t.Helper()
	if testing.Short() {
		t.Skip("-short: starts a daemon and takes its time")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pages := l.Addr().String()
	l.Close()
	d := daemontest.Serve(t, "--pages-listen", pages,
		"--pages-lease", lease.String(), "--pages-hold", "100ms", "--pages-quarantine", quarantine.String())
	return &daemon{data: d.Data, mount: d.Mount, pages: pages}
}

// empty removes what an earlier chain has left on the mount.
func (d *daemon) empty(t *testing.T) {
	t.Helper()
	all, err := os.ReadDir(d.mount)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range all {
		if e.Name() == "3fs-virt" {
			continue
		}
		if err := os.RemoveAll(filepath.Join(d.mount, e.Name())); err != nil {
			t.Fatal(err)
		}
	}
}
