package rights

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
	"github.com/kv3fs/kv3fs/internal/wire"
)

const (
	faultBytes   = 16 << 20
	presentBytes = 6_275_072 // of faultBytes, what is left of the client's memory
)

// ringFault asks for faultBytes of a file at once, with an iov of which a part is gone.
func ringFault(c *client, s step, write bool) (int64, error) {
	var st unix.Stat_t
	if err := unix.Stat(s.Path, &st); err != nil {
		return 0, err
	}
	object, err := hostile.NewObject(faultBytes)
	if err != nil {
		return 0, err
	}
	defer os.Remove(object)
	iov, err := hostile.Register(c.mount, object, "")
	if err != nil {
		return 0, err
	}
	if err := os.Truncate(object, presentBytes); err != nil {
		return 0, err
	}
	suffix := ".r0.t0"
	if write {
		suffix = ".w0.t0"
	}
	r, err := hostile.NewRing(c.mount, 4, suffix)
	if err != nil {
		return 0, err
	}
	defer r.Close()
	r.Push(0, wire.Args{BufID: iov, FileIno: st.Ino, Len: faultBytes})
	r.Post()
	switch got := r.Reap(1, hostile.Patience); {
	case len(got) != 1:
		return 0, unix.ETIME
	case got[0].Result < 0:
		return 0, syscall.Errno(-got[0].Result)
	default:
		return got[0].Result, nil
	}
}

// newTmpfs returns an empty data directory in memory.
func newTmpfs(t *testing.T) string {
	t.Helper()
	daemontest.NeedRoot(t)
	dir := daemontest.NewDir(t)
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755,size=64m"); err != nil {
		daemontest.NotTested(t, "a tmpfs of our own: "+err.Error())
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	data := filepath.Join(dir, "data")
	if err := errors.Join(os.Mkdir(data, 0o777), os.Chmod(data, 0o777)); err != nil {
		t.Fatal(err)
	}
	return data
}

// A client whose memory ends in the middle of a request gets EFAULT, never a short count,
// which would mean the end of the file.
func TestFaultsAreErrors(t *testing.T) {
	if testing.Short() {
		t.Skip("needs daemons")
	}
	for kind, newData := range map[string]func(*testing.T) string{
		"memory": newTmpfs,
		"disk":   func(t *testing.T) string { return hostile.NewData(t) },
	} {
		for _, mode := range []string{"auto", "buffered", "direct"} {
			t.Run(kind+" "+mode, func(t *testing.T) {
				data := newData(t)
				d := serve(t, data, "--io", mode)
				u := hostile.NewUser(t)
				path := filepath.Join(data, "f")
				err := errors.Join(os.WriteFile(path, make([]byte, faultBytes), 0o600), os.Chown(path, int(u.ID), int(u.ID)))
				if err != nil {
					t.Fatal(err)
				}
				onMount := filepath.Join(d.Mount, "f")
				steps := []step{{Op: "ring-fault-read", Path: onMount}, {Op: "ring-fault-write", Path: onMount}, {Op: "ring-read", Path: onMount}}
				want := []outcome{{Errno: unix.EFAULT}, {Errno: unix.EFAULT}, {N: 1}}
				for i, got := range do(t, u, d.Mount, steps...) {
					if got != want[i] {
						t.Errorf("%s: %v, want %v", steps[i].Op, got, want[i])
					}
				}
			})
		}
	}
}
