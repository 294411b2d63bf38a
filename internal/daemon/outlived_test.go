package daemon

import (
	"fmt"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/faultdir"
)

// The number of a former mount may be another one's by now, whose clients use no file of a daemon that has ended.
func TestNumberOfAFormerMount(t *testing.T) {
	daemontest.NeedRoot(t)
	minorOf := func(path string) uint32 {
		t.Helper()
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return unix.Minor(st.Dev)
	}
	living := minorOf(faultdir.New(t).Path)

	point := t.TempDir()
	device, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	err = unix.Mount("ended", point, "fuse.ended", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", device))
	unix.Close(device)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(point, unix.MNT_DETACH)
	h := host.Local()
	mounts, err := h.Mounts()
	if err != nil {
		t.Fatal(err)
	}
	at, found := host.At(mounts, point)
	var ended uint32
	if _, err := fmt.Sscanf(at.Device, "0:%d", &ended); !found || err != nil {
		t.Fatal(at, err)
	}
	var st unix.Statfs_t
	if err := unix.Statfs(point, &st); err != syscall.ENOTCONN {
		t.Fatalf("without a daemon: %v", err)
	}

	for what, c := range map[string]struct {
		minor uint32
		want  bool
	}{"a mount whose daemon lives": {living, true}, "one whose daemon has ended": {ended, false}, "none": {1<<20 - 1, false}} {
		if got := reused(h, c.minor); got != c.want {
			t.Errorf("%s has number %d: %v", what, c.minor, got)
		}
	}
}
