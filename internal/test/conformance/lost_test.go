package conformance

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// TestLostMount checks that a daemon that loses its mount without being told to stop says why,
// leaves nothing mounted and exits with an error, so that whoever supervises it starts it
// again. A client has a file open meanwhile, where the mount can be lost with that.
func TestLostMount(t *testing.T) {
	daemontest.NeedRoot(t)
	for _, c := range []struct {
		how, cause string
		busy       bool
		lose       func(t *testing.T, mount string)
	}{
		{"abort", "aborted its connection", true, abortConnection},
		{"umount -f", "aborted its connection", true, func(t *testing.T, mount string) { _ = unix.Unmount(mount, unix.MNT_FORCE) }},
		{"umount -l", "detached it", true, func(t *testing.T, mount string) { must(t, unix.Unmount(mount, unix.MNT_DETACH)) }},
		{"umount", "unmounted it", false, func(t *testing.T, mount string) { must(t, unix.Unmount(mount, 0)) }},
	} {
		t.Run(c.how, func(t *testing.T) {
			w := start(t, daemontest.Options{Flags: []string{"--drain", "300ms"}})
			semaphores := semaphoresOf(t, w)
			held, err := os.Create(w.Mount + "/f")
			must(t, err)
			defer held.Close()
			if !c.busy {
				must(t, held.Close())
			}
			c.lose(t, w.Mount)
			within(t, patience, "the exit of the daemon", func() { <-w.Ended() })
			if w.Err() == nil {
				t.Error("the exit status is 0, as after an orderly stop")
			}
			if log := w.Log(); !strings.Contains(log, "lost the mount") || !strings.Contains(log, c.cause) {
				t.Errorf("no %q in the log:\n%s", c.cause, log)
			}
			if left := daemontest.MountsBelow(w.Mount); len(left) != 0 {
				t.Errorf("left mounted: %v", left)
			}
			for _, s := range semaphores {
				wantGone(t, s)
			}
			next := start(t, daemontest.Options{Data: w.Data, Mount: w.Mount})
			wantThere(t, next.Mount+"/f")
		})
	}
}

// abortConnection ends the connection of a mount through the control file system.
func abortConnection(t *testing.T, mount string) {
	t.Helper()
	var st unix.Stat_t
	must(t, unix.Stat(mount, &st))
	control := daemontest.NewDir(t)
	must(t, unix.Mount("fusectl", control, "fusectl", 0, ""))
	defer unix.Unmount(control, unix.MNT_DETACH)
	must(t, os.WriteFile(filepath.Join(control, fmt.Sprint(unix.Minor(st.Dev)), "abort"), []byte("1"), 0))
}

// TestCoveredMount checks that a daemon whose mount another file system covers says so at once
// and again when it stops. It does not exit as if all were well: its dead mount stays beneath,
// where nothing can reach it.
func TestCoveredMount(t *testing.T) {
	daemontest.NeedRoot(t)
	w := start(t, daemontest.Options{Flags: []string{"--drain", "300ms"}})
	must(t, unix.Mount("cover", w.Mount, "tmpfs", 0, ""))
	write(t, w.Mount+"/others", nil)
	eventually(t, "the daemon says that its mount is covered", func() bool {
		return strings.Contains(w.Log(), "mounted over the mount") && strings.Contains(w.Log(), "source=cover")
	})
	w.signal(t, syscall.SIGTERM)
	if w.Err() == nil || !strings.Contains(w.Log(), "left behind") || !strings.Contains(w.Log(), "umount -l "+w.Mount) {
		t.Errorf("exit: %v\n%s", w.Err(), w.Log())
	}
	wantThere(t, w.Mount+"/others")
	must(t, unix.Unmount(w.Mount, unix.MNT_DETACH))
	next := start(t, daemontest.Options{Data: w.Data, Mount: w.Mount})
	wantThere(t, next.virtual("iovs"))
	must(t, next.Stop())
	if left := daemontest.MountsBelow(w.Mount); len(left) != 0 {
		t.Errorf("left mounted: %v", left)
	}
}
