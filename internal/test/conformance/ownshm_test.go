package conformance

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// ownShm begins a script that runs in a mount namespace of its own: it gives that a /dev/shm, as a container has.
const ownShm = "mount -t tmpfs -o mode=1777,size=64m tmpfs /dev/shm; exec "

// TestOwnDevShm runs the C, Go and Python clients in a container's mount namespace, and as a user who has a user namespace as well:
// all that they need is the mount.
func TestOwnDevShm(t *testing.T) {
	daemontest.NeedRoot(t)
	w := start(t, daemontest.Options{})
	path := write(t, w.Mount+"/f", pattern(1<<20, 1))
	t.Run("c", func(t *testing.T) { ringsOfOwnShm(t, w, newTool(t, 0, ownShm+`"$0"`)) })
	t.Run("c in a user namespace", func(t *testing.T) {
		if out, err := exec.Command("unshare", "--user", "--map-root-user", "true").CombinedOutput(); err != nil {
			daemontest.NotTested(t, fmt.Sprintf("it takes user namespaces: %v: %s", err, out))
		}
		cmd := exec.Command("unshare", "--user", "--map-root-user", "--mount", "sh", "-ec", ownShm+`"$0"`, usrbioTool(t))
		cmd.SysProcAttr = asUser(alice)
		ringsOfOwnShm(t, w, startTool(t, cmd))
		goneFor(t, w, alice)
	})
	t.Run("go", func(t *testing.T) {
		want := fmt.Sprintf("mount %s\n%x\n", w.Mount, pattern(16, 1))
		if got := runChild(t, ownShm+`"$0"`, "read", path); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	})
	t.Run("python", func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
		defer cancel()
		cmd := python(ctx, t, pythonSliceOfSlice, path)
		cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-ec", ownShm + `"$0" "$@"`}, cmd.Args...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
		if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
			t.Errorf("%v\n%s", err, out)
		}
	})
}

// ringsOfOwnShm writes and reads through rings of a client that has a /dev/shm of its own.
func ringsOfOwnShm(t *testing.T, w *world, c *tool) {
	at := w.Mount + "/" + strings.ReplaceAll(filepath.Base(t.Name()), " ", "-")
	must(t, os.WriteFile(at, nil, 0o666))
	must(t, os.Chmod(at, 0o666))
	c.ok("open f %s rdwr", at)
	c.ok("reg f")
	c.ok("iovcreate out %s 65536 0 -1", w.Mount)
	c.ok("iovcreate in %s 65536 0 -1", w.Mount)
	c.ok("fill out 0 65536 7")
	for _, way := range []struct{ iov, ring, flag string }{{"out", "put", "w"}, {"in", "get", "r"}} {
		c.ok("iorcreate %s %s 8 %s 0 -1", way.ring, w.Mount, way.flag)
		c.ok("prep %s %s %s 0 f 0 65536 1", way.ring, way.iov, way.flag)
		c.ok("submit %s", way.ring)
		if got := c.ok("wait %s 1 1 30000", way.ring).cqes(t); got[0].result != 65536 {
			t.Errorf("%s: %+v", way.ring, got)
		}
	}
	c.ok("check in 0 65536 7")
	mappedFromOwnShm(t, c.cmd.Process.Pid)
	c.die()
}

// mappedFromOwnShm checks that all shared memory objects of a process are in its own /dev/shm, not the host's.
func mappedFromOwnShm(t *testing.T, pid int) {
	t.Helper()
	var own, host unix.Stat_t
	must(t, unix.Stat(fmt.Sprintf("/proc/%d/root/dev/shm", pid), &own))
	must(t, unix.Stat("/dev/shm", &host))
	if own.Dev == host.Dev {
		t.Fatal("the client has the host's /dev/shm")
	}
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	must(t, err)
	objects := 0
	for line := range strings.Lines(string(maps)) {
		if !strings.Contains(line, " /dev/shm/") {
			continue
		}
		objects++
		// The fourth field is the device.
		if dev := fmt.Sprintf(" %02x:%02x ", unix.Major(own.Dev), unix.Minor(own.Dev)); !strings.Contains(line, dev) {
			t.Errorf("mapped from elsewhere than device%s: %s", dev, line)
		}
	}
	if objects < 4 { // two iovs, two rings
		t.Errorf("%d objects are mapped:\n%s", objects, maps)
	}
}
