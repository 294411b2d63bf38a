package keeper

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"
)

// What is found out by reading is what the mount's options say, on file systems that keep atimes.
func TestAtimes(t *testing.T) {
	for _, c := range []struct {
		options uintptr
		want    Atimes
	}{{unix.MS_NOATIME, AtimesNever}, {unix.MS_RELATIME, AtimesDaily}, {unix.MS_STRICTATIME, AtimesAlways}} {
		dir := t.TempDir()
		if err := unix.Mount("tmpfs", dir, "tmpfs", c.options, "size=1m"); err != nil {
			t.Skipf("cannot mount: %v", err)
		}
		t.Cleanup(func() { must(t, unix.Unmount(dir, unix.MNT_DETACH)) })
		root, err := os.OpenRoot(dir)
		must(t, err)
		defer root.Close()
		if got, err := ProbeAtimes(root); err != nil || got != c.want {
			t.Errorf("%v: %v, %v", c.want, got, err)
		}
		if got, err := AtimesOf(dir); err != nil || got != c.want {
			t.Errorf("options of %v: %v, %v", c.want, got, err)
		}
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("it leaves %v, %v", left, err)
		}
	}
}
