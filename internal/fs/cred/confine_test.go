package cred

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

// effective returns the effective capabilities of this thread.
func effective(t *testing.T) uint64 {
	t.Helper()
	c, err := loadCapabilities()
	if err != nil {
		t.Fatal(err)
	}
	return uint64(c[1].Effective)<<32 | uint64(c[0].Effective)
}

// A write in Confined is one without privileges: it clears set-id bits. Afterwards the
// thread has all of its rights again.
func TestConfinedHasNoPrivileges(t *testing.T) {
	needRoot(t)
	path := filepath.Join(t.TempDir(), "f")
	if err := errors.Join(os.WriteFile(path, []byte("x"), 0o600), unix.Chmod(path, 0o6777)); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	write := func() error {
		_, err := unix.Pwrite(int(f.Fd()), []byte("y"), 0)
		return err
	}
	mode := func() uint32 {
		var st unix.Stat_t
		if err := unix.Stat(path, &st); err != nil {
			t.Fatal(err)
		}
		return st.Mode & 0o7777
	}
	before := effective(t)
	if err := write(); err != nil || mode() != 0o6777 {
		t.Fatalf("as root: %v, mode %o", err, mode())
	}
	if err := Confined(write); err != nil || mode() != 0o777 {
		t.Errorf("confined: %v, mode %o", err, mode())
	}
	if got := effective(t); got != before {
		t.Errorf("capabilities %x before, %x after", before, got)
	}
	if err := Confined(func() error { return unix.EXDEV }); err != unix.EXDEV {
		t.Errorf("its error: %v", err)
	}
	err = Confined(func() error {
		fd, err := unix.Open(path, unix.O_RDWR|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		return err
	})
	if err == nil {
		t.Error("nobody can open root's file in a directory of root's")
	}
}

// Goroutines that are not confined never run on a confined thread.
func TestConfinedStaysOnItsThread(t *testing.T) {
	needRoot(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 300 {
				if i%2 == 0 {
					err := Confined(func() error {
						if uid := setFS(unix.SYS_SETFSUID, -1); uid != nobody {
							return unix.EPERM
						}
						return unix.Access("/", unix.F_OK)
					})
					if err != nil {
						t.Error(err)
					}
				}
				if uid := setFS(unix.SYS_SETFSUID, -1); uid != 0 {
					t.Errorf("fsuid %d outside", uid)
				}
			}
		})
	}
	wg.Wait()
}
