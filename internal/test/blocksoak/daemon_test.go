package blocksoak

import (
	"fmt"
	"net"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	pages := l.Addr().String()
	l.Close()
	d := daemontest.Serve(t, "--pages-listen", pages,
		// Pages of damaged blocks are used again soon.
		"--pages-lease", fmt.Sprintf("%dms", leaseMs), "--pages-hold", "100ms", "--pages-quarantine", fmt.Sprintf("%dms", quarantineMs))
	return &daemon{data: d.Data, mount: d.Mount, pages: pages}
}
