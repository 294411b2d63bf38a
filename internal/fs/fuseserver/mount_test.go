package fuseserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

func TestMountinfoLine(t *testing.T) { // R1, case 1
	w := newWorld(t, Options{})
	m := topAt(t, w.dir)
	if m.fsType != "fuse.hf3fs" || m.source != "hf3fs.stage" {
		t.Fatalf("%+v", m)
	}
	info, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(info)) {
		if strings.Contains(line, w.dir) {
			for _, opt := range []string{"nosuid", "nodev", "default_permissions", "allow_other", "max_read=1048576"} {
				if !strings.Contains(line, opt) {
					t.Errorf("no %s in %s", opt, line)
				}
			}
		}
	}
}

// allAt returns the mounts at path.
func allAt(t *testing.T, path string) []mountpoint {
	t.Helper()
	all, err := mountsAt(path)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// topAt returns the mount that is seen at path; the zero value if there is none.
func topAt(t *testing.T, path string) mountpoint {
	t.Helper()
	all := allAt(t, path)
	if len(all) == 0 {
		return mountpoint{}
	}
	return all[0]
}

func TestFindMounts(t *testing.T) {
	const info = "1 0 0:40 / / rw - ext4 /dev/a rw\n" +
		"22 1 0:41 / /mnt/a\\040b rw shared:3 - fuse.hf3fs hf3fs.x rw\nshort\n" +
		"5 24 0:46 / /mnt rw - fuse.top y rw\n" + // numbers are used again: the order says nothing
		"23 1 0:43 / /mnt rw - tmpfs y rw\n" +
		"24 23 0:44 / /mnt rw - fuse.hf3fs y rw\n" +
		"30 31 0:1 / /cycle rw - fuse y rw\n31 30 0:2 / /cycle rw - fuse y rw\n"
	if all := findMounts(info, "/mnt/a b", 22); len(all) != 1 || all[0].minor != 41 || all[0].source != "hf3fs.x" {
		t.Errorf("%+v", all)
	}
	var minors []int
	for _, m := range findMounts(info, "/mnt", 5) {
		minors = append(minors, m.minor)
	}
	if !slices.Equal(minors, []int{46, 44, 43}) {
		t.Errorf("from the top: %v", minors)
	}
	if all := findMounts(info, "/mnt/x", 5); len(all) > 0 {
		t.Errorf("found what is not there: %+v", all)
	}
	if all := findMounts(info, "/cycle", 30); len(all) != 2 {
		t.Errorf("%+v", all)
	}
}

func TestBadMountPointsAndNamesAreRefused(t *testing.T) {
	top := t.TempDir()
	data := filepath.Join(top, "data")
	os.Mkdir(data, 0o755)
	os.WriteFile(filepath.Join(top, "file"), nil, 0o644)
	s, err := tree.Open(data, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	try := func(point, cluster string) error {
		_, err := New(s, nil, nil, point, Options{Cluster: cluster})
		return err
	}
	for point, cluster := range map[string]string{
		data + "/sub": "ok", top: "ok", data: "ok", top + "/no/such/parent": "ok", top + "/file": "ok",
		top + "/a": "", top + "/b": "with blank", top + "/c": strings.Repeat("x", 32), top + "/d": "a,b", top + "/e": "a\nb",
	} {
		if err := try(point, cluster); err == nil {
			t.Errorf("mounted at %s as %q", point, cluster)
		}
	}
}

func TestMountsThroughSymlinkAndCreates(t *testing.T) {
	w := newWorld(t, Options{})
	w.unmount()
	top := filepath.Dir(w.dir)
	os.Symlink(w.dir, top+"/link")
	w.dir = top + "/link"
	w.mount(Options{})
	if w.m.Point() != top+"/mnt" {
		t.Errorf("mounted at %s", w.m.Point())
	}
}

func TestRefusesLivingDaemon(t *testing.T) {
	w := newWorld(t, Options{})
	_, err := New(w.tree, w.control, w.settings, w.dir, Options{Cluster: "two"})
	if err == nil || !strings.Contains(err.Error(), "hf3fs.stage") || !strings.Contains(err.Error(), "fusermount3 -u") {
		t.Fatalf("error %v", err)
	}
}

func TestUnmountWaitsForTheLastUser(t *testing.T) {
	w := newWorld(t, Options{})
	f, err := os.Create(w.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	done := make(chan error)
	m := w.m
	go func() { done <- m.Unmount(ctx) }()
	select {
	case err := <-done:
		t.Fatalf("unmounted under an open file: %v", err)
	case <-time.After(3 * busyRetryInterval):
	}
	f.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	<-w.serveErr
	w.mount(Options{})
}

func TestUnmountCutsOffRemainingClients(t *testing.T) {
	w := newWorld(t, Options{Passthrough: PassthroughOff})
	f, err := os.Create(w.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	d, err := os.Open(w.path("3fs-virt"))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 2*busyRetryInterval)
	defer cancel()
	began := time.Now()
	if err := w.m.Unmount(ctx); !errors.Is(err, unix.EBUSY) {
		t.Errorf("unmount: %v", err)
	}
	if took := time.Since(began); took > abortGrace {
		t.Errorf("took %v", took)
	}
	if err := <-w.serveErr; err != nil {
		t.Errorf("serve: %v", err)
	}
	if _, err := f.Write([]byte("x")); err == nil {
		t.Error("a file of an aborted mount can be written")
	}
	if all := allAt(t, w.dir); len(all) > 0 {
		t.Error("still mounted")
	}
	w.mount(Options{})
}

// A copy of the mount in another mount namespace keeps the connection alive. It is no user
// of the mount, so it holds nothing up.
func TestUnmountWithACopyElsewhere(t *testing.T) {
	w := newWorld(t, Options{})
	elsewhere := exec.Command("unshare", "-m", "--propagation", "private", "sh", "-c", "echo copied; exec cat")
	stdin, err := elsewhere.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := elsewhere.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := elsewhere.Start(); err != nil {
		t.Skipf("no mount namespaces here: %v", err)
	}
	defer elsewhere.Wait()
	defer stdin.Close()
	if line, err := bufio.NewReader(stdout).ReadString('\n'); err != nil {
		t.Skipf("no mount namespaces here: %q, %v", line, err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	began := time.Now()
	if err := w.m.Unmount(ctx); err != nil {
		t.Errorf("unmount: %v", err)
	}
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("took %v", took)
	}
	if err := <-w.serveErr; err != nil {
		t.Errorf("serve: %v", err)
	}
	w.mount(Options{})
}

func TestUnmountedByHand(t *testing.T) {
	w := newWorld(t, Options{})
	if err := unix.Unmount(w.dir, 0); err != nil {
		t.Fatal(err)
	}
	if err := <-w.serveErr; err != nil {
		t.Error(err)
	}
	if err := <-w.m.Lost(); !strings.Contains(err.Error(), "unmounted it") {
		t.Errorf("lost: %v", err)
	}
	w.serveErr <- nil
}

// A daemon that has no descriptor left to look at the mounts with, when they change, does not take its own for lost. It sees the end of it later.
func TestLooksWithoutDescriptors(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root, to change the mounts")
	}
	w := newWorld(t, Options{})
	other := t.TempDir()
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		t.Fatal(err)
	}
	restore := func() {
		if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(restore)
	none := limit
	none.Cur = 0
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &none); err != nil {
		t.Fatal(err)
	}
	mounted := unix.Mount("none", other, "tmpfs", 0, "size=64k") // has it look
	t.Cleanup(func() { _ = unix.Unmount(other, 0) })
	if mounted != nil {
		t.Fatal(mounted)
	}
	until(t, "the daemon cannot look, or takes the mount for lost", func() bool {
		return strings.Contains(w.log.String(), "too many open files") || len(w.m.Lost()) > 0
	})
	if _, err := mountsAt(w.dir); !errors.Is(err, unix.EMFILE) {
		t.Errorf("what is mounted: %v", err)
	}
	restore()
	w.log.forget()
	if len(w.m.Lost()) > 0 {
		t.Fatal(<-w.m.Lost())
	}
	if err := os.WriteFile(w.path("f"), []byte("x"), 0o644); err != nil {
		t.Error(err)
	}
	if err := unix.Unmount(w.dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := <-w.m.Lost(); !strings.Contains(err.Error(), "another process") {
		t.Errorf("lost: %v", err)
	}
}

// Where this mount is, whether something covers it, and that a mount with the same number on
// another device, or below it, is neither.
func TestLook(t *testing.T) {
	m := &Mount{id: 30, minor: 50}
	const own, others = "30 29 0:50 / /mnt rw - fuse.hf3fs hf3fs.x rw\n", "29 1 0:3 / / rw - ext4 a rw\n31 30 0:4 / /mnt/sub rw - tmpfs b rw\n"
	const cover = "32 30 0:5 / /mnt rw - tmpfs c rw\n"
	for info, want := range map[string]whereabouts{
		others + own:                            {path: "/mnt"},
		cover + others + own:                    {path: "/mnt", over: &mountpoint{id: 32, parent: 30, minor: 5, root: "/", path: "/mnt", fsType: "tmpfs", source: "c"}},
		others:                                  {gone: true},
		strings.ReplaceAll(own, "0:50", "0:51"): {gone: true},
	} {
		if got := m.lookIn(info); got.gone != want.gone || got.path != want.path || (got.over == nil) != (want.over == nil) || got.over != nil && *got.over != *want.over {
			t.Errorf("%q: %+v, want %+v", info, got, want)
		}
	}
}

// Without root the helper mounts, and only the daemon's user has access.
func TestMountsWithoutRoot(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("the other tests are without root already")
	}
	const nobody = 65534 // the helper wants a user with a name
	top := openUp(t, t.TempDir())
	exe := top + "/test.exe"
	self, _ := os.ReadFile("/proc/self/exe")
	os.WriteFile(exe, self, 0o755)
	for _, dir := range []string{"/data", "/mnt"} {
		os.Mkdir(top+dir, 0o755)
		os.Chown(top+dir, nobody, nobody)
	}
	os.WriteFile(top+"/data/f", []byte("hello"), 0o644)
	child := exec.Command(exe, top+"/data", top+"/mnt")
	child.Env = append(os.Environ(), "KV3FS_TEST_CHILD=daemon")
	// Only root may have access to the device node; then the test cannot run.
	user := &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	child.SysProcAttr = user
	child.Dir = "/"
	var said bytes.Buffer
	child.Stderr = &said
	out, _ := child.StdoutPipe()
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	line, _ := bufio.NewReader(out).ReadString('\n')
	defer func() { child.Process.Kill(); child.Wait(); unix.Unmount(top+"/mnt", unix.MNT_DETACH) }()
	if line != "mounted\n" {
		child.Wait() // until then it writes to said
		t.Skipf("no user mounts here: %q %s", line, said.String())
	}
	m := topAt(t, top+"/mnt")
	if m.fsType != "fuse.hf3fs" || m.source != "hf3fs.child" {
		t.Errorf("%+v", m)
	}
	cat := exec.Command("/bin/cat", top+"/mnt/f")
	cat.SysProcAttr = user
	if text, err := cat.Output(); string(text) != "hello" {
		t.Errorf("read %q, %v", text, err)
	}
}

// Unmount and Serve return even if a call that Serve waits for hangs.
func TestServeDoesNotHang(t *testing.T) {
	w := newWorld(t, Options{})
	hanging, release := make(chan struct{}), make(chan struct{})
	w.m.fs.notifier.send = func(uint64, string) { close(hanging); <-release }
	w.m.fs.notifier.entry(1, "x")
	<-hanging
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- w.m.Unmount(ctx) }()
	select {
	case err := <-done:
		if err == nil {
			t.Error("Unmount does not report that a client was cut off")
		}
	case <-time.After(20 * time.Second):
		t.Error("Unmount hangs")
		close(release)
		return
	}
	if err := <-w.serveErr; err == nil {
		t.Error("Serve does not report that it abandoned requests")
	}
	w.serveErr <- nil
	if err := w.tree.Close(); err != nil {
		t.Error(err)
	}
	if _, err := w.tree.Statfs(); err != nil {
		t.Errorf("a call that hangs cannot continue: %v", err)
	}
	close(release)
	closeDescriptors(t, w.data) // an abandoned tree keeps its own; the leak test is not about that
}

// closeDescriptors closes what this process has open at path.
func closeDescriptors(t *testing.T, path string) {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		if target, _ := os.Readlink("/proc/self/fd/" + e.Name()); target != path {
			continue
		}
		fd, err := strconv.Atoi(e.Name())
		if err != nil {
			t.Fatal(err)
		}
		unix.Close(fd)
	}
}

// Registrations can be removed in read-only mode.
func TestUnregisterInReadonlyMode(t *testing.T) {
	w := newWorld(t, Options{})
	if err := os.Symlink("/dev/shm/x", w.path("3fs-virt/iovs/key")); err != nil {
		t.Fatal(err)
	}
	w.write("f", "x")
	w.settings.readonly.Store(true)
	wantErrno(t, "a registration", os.Remove(w.path("3fs-virt/iovs/key")), 0)
	wantErrno(t, "a file", os.Remove(w.path("f")), unix.EROFS)
}
