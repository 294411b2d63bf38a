package conformance

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// TestCLibrarysRingsOutliveDaemon checks that a program with the C library goes on with its rings when the daemon was killed, or stopped by
// SIGTERM, and started again, with what it had submitted meanwhile, and without renewing anything.
func TestCLibrarysRingsOutliveDaemon(t *testing.T) {
	daemontest.NeedRoot(t)
	top, err := os.MkdirTemp("/dev/shm", "kv3fs-outlive-test-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(top) })
	state := filepath.Join(top, "state")
	w := start(t, daemontest.Options{Flags: []string{"--drain", "0s", "--restart-state", state}})
	t.Cleanup(func() { // for good: else it would leave its semaphores to another one
		_ = w.Signal(os.Interrupt)
		select {
		case <-w.Ended():
		case <-time.After(time.Minute):
			t.Error("the daemon does not end")
		}
	})
	path := write(t, w.Mount+"/f", pattern(100, 1))
	c := w.tool(t)
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("open f %s rdonly", path)
	c.ok("reg f")
	taken := filepath.Join(top, "socket")
	l, err := net.Listen("unix", taken)
	must(t, err)
	defer l.Close()
	for _, end := range []func(){w.Kill, func() { _ = w.Signal(syscall.SIGTERM); <-w.Ended() }, w.Kill} {
		end()
		c.ok("prep r v r 0 f 0 4096 1")
		c.ok("submit r")
		// A start that fails takes nothing away from the next one.
		out, err := exec.Command(kv3fs(t), "serve", "--data", w.Data, "--mount", w.Mount, "--pages-listen", "unix:"+taken, "--admin-listen", "off", "--restart-state", state).CombinedOutput()
		if err == nil || !strings.Contains(string(out), "another process listens there") || !strings.Contains(string(out), "rings=1") {
			t.Fatalf("a start that was to fail late: %v\n%s", err, out)
		}
		w.Start(t)
		if got := c.ok("wait r 1 1 inf").cqes(t); got[0].result != 100 {
			t.Fatalf("after a restart: %+v\n%s", got, w.Log())
		}
		c.ok("check v 0 100 1")
		c.ok("iorprobe r")
	}
	c.ok("iordestroy r")
	c.ok("iovdestroy v")
	eventually(t, "what was destroyed is removed", func() bool { return slices.Equal(c.ok("list %s", w.iovs("")).rest, submitLinks) })
}
