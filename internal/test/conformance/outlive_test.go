package conformance

import (
	"slices"
	"syscall"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// TestCLibraryOutlivesDaemon checks that no call of the C library waits for ever for a daemon
// that was stopped or killed, and that its registrations can be renewed.
func TestCLibraryOutlivesDaemon(t *testing.T) {
	daemontest.NeedRoot(t) // nobody else can mount over a dead mount
	w := start(t, daemontest.Options{})
	path := write(t, w.Mount+"/f", pattern(100, 1))
	c := w.tool(t)
	noneLeft := func(when string) {
		t.Helper()
		eventually(t, when, func() bool { return slices.Equal(c.ok("list %s", w.iovs("")).rest, submitLinks) })
	}

	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("iorprobe r")
	c.ok("env HF3FS_USRBIO_ANSWER_MS 300")
	w.Freeze(t)
	c.fails(-int(syscall.ETIMEDOUT), "iovcreate w %s 4096 0 -1", w.Mount)
	c.fails(-int(syscall.ETIMEDOUT), "iorcreate q %s 4 r 0 -1", w.Mount)
	c.ok("iordestroy r")
	c.ok("iovdestroy v")
	w.Thaw(t)
	noneLeft("what was destroyed or given up is removed once the daemon goes on")
	c.ok("env HF3FS_USRBIO_ANSWER_MS")

	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("open before %s rdonly", path)
	w.Kill()
	c.fails(int(syscall.ENOTCONN), "reg before")
	c.fails(-int(syscall.ENOTCONN), "iovprobe v")
	c.fails(-int(syscall.ENOTCONN), "wait r 1 1 inf")
	c.fails(-int(syscall.ENOTCONN), "iorprobe r")
	c.fails(-int(syscall.ENOTCONN), "iorrenew r")
	w.Start(t)
	c.fails(-int(syscall.ENOTCONN), "wait r 1 1 inf")
	c.ok("iovrenew v")
	c.ok("iorrenew r")
	c.ok("iovprobe v")
	c.ok("open after %s rdonly", path)
	c.ok("reg after")
	c.ok("prep r v r 0 after 0 4096 1")
	c.ok("submit r")
	if got := c.ok("wait r 1 1 inf").cqes(t); got[0].result != 100 {
		t.Errorf("after the renewal: %+v", got)
	}
	c.ok("check v 0 100 1")
	c.ok("iordestroy r")
	c.ok("iovdestroy v")
	noneLeft("renewed registrations are removed")
}
