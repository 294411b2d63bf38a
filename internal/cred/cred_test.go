package cred

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func needRoot(t *testing.T) {
	t.Helper()
	if !Privileged() {
		t.Skip("needs root")
	}
}

func TestStrictIsTheKernelsDecision(t *testing.T) {
	needRoot(t)
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret")
	if err := os.WriteFile(secret, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	open := func() error {
		fd, err := unix.Open(secret, unix.O_RDONLY, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	for p := dir; p != "/" && p != "/tmp"; p = filepath.Dir(p) {
		os.Chmod(p, 0o755)
	}
	if err := Strict(Caller{UID: 12345, GID: 12345}, open); !errors.Is(err, unix.EACCES) {
		t.Fatalf("uid 12345 opened a 0600 file of root: %v", err)
	}
	if err := Strict(Caller{}, open); err != nil {
		t.Fatalf("root: %v", err)
	}
	if err := open(); err != nil {
		t.Fatalf("the daemon lost its own rights: %v", err)
	}
}

func TestOwnerCreatesAsCallerWithRightsOfTheDaemon(t *testing.T) {
	needRoot(t)
	dir := t.TempDir() // 0755 root: uid 12345 may not write here
	path := filepath.Join(dir, "f")
	err := Owner(Caller{UID: 12345, GID: 54321}, func() error { return os.WriteFile(path, nil, 0o644) })
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	st := info.Sys().(*syscall.Stat_t)
	if st.Uid != 12345 || st.Gid != 54321 {
		t.Fatalf("created as %d:%d", st.Uid, st.Gid)
	}
}

func TestIdentitiesDoNotLeakBetweenThreads(t *testing.T) {
	needRoot(t)
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for range 200 {
				c := Caller{UID: uint32(20000 + i), GID: uint32(30000 + i)}
				run := Strict
				if i%2 == 0 {
					run = Owner
				}
				err := run(c, func() error {
					if uid, gid := setFS(unix.SYS_SETFSUID, -1), setFS(unix.SYS_SETFSGID, -1); uid != int(c.UID) || gid != int(c.GID) {
						return errors.New("wrong identity inside")
					}
					return nil
				})
				if err != nil {
					t.Error(err)
				}
				if uid := setFS(unix.SYS_SETFSUID, -1); uid != 0 {
					t.Errorf("fsuid %d outside", uid)
				}
			}
		})
	}
	wg.Wait()
}

func TestParseGroups(t *testing.T) {
	status := "Name:\tx\nUid:\t7\t7\t7\t8\nGid:\t1\t1\t1\t1\nGroups:\t4 24 27 \n"
	if got := parseGroups(status, 8); !slices.Equal(got, []int{4, 24, 27}) {
		t.Fatalf("groups %v", got)
	}
	if got := parseGroups(status, 7); got != nil {
		t.Fatalf("another process's groups were believed: %v", got)
	}
}

func TestAllows(t *testing.T) {
	c := Caller{UID: 7, GID: 8}
	for _, x := range []struct{ mode, uid, gid, want uint32 }{
		{0o477, 7, 8, 4}, {0o277, 7, 9, 2}, {0o707, 1, 8, 0}, {0o766, 1, 8, 6}, {0o714, 1, 9, 4}, {0o700, 1, 9, 0},
	} {
		read, write := c.Allows(unix.S_IFREG|x.mode, x.uid, x.gid)
		if read != (x.want&4 != 0) || write != (x.want&2 != 0) {
			t.Errorf("%o of %d:%d: read %v, write %v", x.mode, x.uid, x.gid, read, write)
		}
	}
}
