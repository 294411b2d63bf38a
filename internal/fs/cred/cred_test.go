package cred

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/leaktest"
)

const childEnv = "KV3FS_TEST_CHILD"

func TestMain(m *testing.M) {
	switch os.Getenv(childEnv) {
	case "stay":
		os.Stdout.WriteString("here")
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case "unprivileged":
		for _, uid := range []int{0, 777, os.Geteuid()} {
			ran := false
			err := RunAs(Caller{UID: uint32(uid)}, func() error { ran = true; return nil })
			if mine := uid == os.Geteuid(); ran != mine || mine && err != nil || !mine && err != unix.EPERM {
				fmt.Printf("uid %d: ran %v, %v\n", uid, ran, err)
			}
		}
		os.Exit(0)
	}
	if os.Getenv(childEnv) == "give up" {
		os.Exit(childGivesUp())
	}
	os.Exit(leaktest.Main(m))
}

// Groups that were looked up once stay when the process is gone, and are the same for
// a process that got its id.
func TestWithGroups(t *testing.T) {
	const group = 4711
	pid, end := staying(t, group)
	c := Caller{UID: 12345, GID: 12345, PID: pid}
	known := c.WithGroups()
	stranger := Caller{UID: 777, GID: 777, PID: c.PID}.WithGroups()
	if err := end(); err != nil {
		t.Fatal(err)
	}
	for who, want := range map[Caller]bool{c: false, known: true, stranger: false, known.WithGroups(): true} {
		if read, _ := who.Allows(0o640, 0, group); read != want {
			t.Errorf("%+v may read: %v, want %v", who, read, want)
		}
		err := RunAs(who, func() error {
			groups, err := unix.Getgroups()
			if slices.Contains(groups, group) != want {
				t.Errorf("%+v has groups %v", who, groups)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// child starts this program as uid and gid 12345 with one more group.
func child(t *testing.T, what string, group uint32) *exec.Cmd {
	t.Helper()
	needRoot(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), childEnv+"="+what)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 12345, Gid: 12345, Groups: []uint32{group}}}
	return cmd
}

// staying starts a child that stays until end is called.
func staying(t *testing.T, group uint32) (pid uint32, end func() error) {
	t.Helper()
	cmd := child(t, "stay", group)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	end = func() error { return errors.Join(in.Close(), cmd.Wait()) }
	if _, err := io.ReadFull(out, make([]byte, 4)); err != nil {
		t.Fatal(errors.Join(err, end()))
	}
	return uint32(cmd.Process.Pid), end
}

// A daemon that cannot take other identities does nothing for other users.
func TestRunAsWithoutPrivileges(t *testing.T) {
	if out, err := child(t, "unprivileged", 1).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("%v: %s", err, out)
	}
}

// The caller's groups are always set, because a group can also deny a right.
func TestRunAsSetsTheCallersGroups(t *testing.T) {
	const group = 4711
	pid, end := staying(t, group)
	defer end()
	dir := t.TempDir()
	for p := dir; len(p) > len(os.TempDir()); p = filepath.Dir(p) {
		os.Chmod(p, 0o755)
	}
	c := Caller{UID: 12345, GID: 12345, PID: pid}
	for mode, want := range map[os.FileMode]error{0o604: unix.EACCES, 0o640: nil, 0o600: unix.EACCES, 0o644: nil} {
		path := filepath.Join(dir, mode.String())
		if err := os.WriteFile(path, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Chown(path, 0, group), os.Chmod(path, mode)); err != nil {
			t.Fatal(err)
		}
		tries := 0
		err := RunAs(c, func() error {
			tries++
			fd, err := unix.Open(path, unix.O_RDONLY, 0)
			unix.Close(fd)
			return err
		})
		if err != want || tries != 1 {
			t.Errorf("mode %v: %v after %d tries", mode, err, tries)
		}
		if read, _ := c.Allows(uint32(mode), 0, group); read != (want == nil) {
			t.Errorf("mode %v allows reading: %v", mode, read)
		}
	}
}

func needRoot(t *testing.T) {
	t.Helper()
	if !Privileged() {
		t.Skip("needs root")
	}
}

func TestRunAsLetsTheKernelDecide(t *testing.T) {
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
	if err := RunAs(Caller{UID: 12345, GID: 12345}, open); !errors.Is(err, unix.EACCES) {
		t.Fatalf("uid 12345 opened a 0600 file of root: %v", err)
	}
	if err := RunAs(Caller{}, open); err != nil {
		t.Fatalf("root: %v", err)
	}
	if err := open(); err != nil {
		t.Fatalf("the daemon lost its own rights: %v", err)
	}
}

func TestCreateAsHasTheRightsOfTheDaemon(t *testing.T) {
	needRoot(t)
	dir := t.TempDir() // 0755 root: uid 12345 may not write here
	path := filepath.Join(dir, "f")
	err := CreateAs(Caller{UID: 12345, GID: 54321}, func() error { return os.WriteFile(path, nil, 0o644) })
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
				run := RunAs
				if i%2 == 0 {
					run = CreateAs
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
		t.Fatalf("the groups of a process of another uid were used: %v", got)
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
