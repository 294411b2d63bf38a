package fuseserver

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// newPoint returns a new directory to mount at, from which all mounts are removed when the
// test ends, and one for data beside it.
func newPoint(t *testing.T) (point, data string) {
	t.Helper()
	daemontest.NeedMounts(t)
	daemontest.NeedRoot(t)
	top, err := filepath.EvalSymlinks(openUp(t, t.TempDir()))
	if err != nil {
		t.Fatal(err)
	}
	// Nobody follows what is mounted there.
	if err := errors.Join(unix.Mount(top, top, "", unix.MS_BIND, ""), unix.Mount("", top, "", unix.MS_PRIVATE, "")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(top, unix.MNT_DETACH) })
	point, data = top+"/mnt", top+"/data"
	if err := errors.Join(os.Mkdir(point, 0o755), os.Mkdir(data, 0o755)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for range allAt(t, point) {
			_ = unix.Unmount(point, unix.MNT_DETACH)
		}
	})
	return point, data
}

// mountDead leaves what a daemon does that is killed.
func mountDead(t *testing.T, point, cluster string) {
	t.Helper()
	fd, err := attachDirectly(point, Options{Cluster: cluster})
	if err != nil {
		t.Fatal(err)
	}
	unix.Close(fd)
	if !Dead(point) {
		t.Fatal("a mount without a daemon answers")
	}
}

// serveAt mounts data at point and serves it until stop is called, which returns the error
// of Serve.
func serveAt(t *testing.T, point, data string) (m *Mount, stop func() error) {
	t.Helper()
	s, err := tree.Open(data, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	m, err = New(s, &fakeControlDir{}, &fakeSettings{}, point, Options{Cluster: "next"})
	if err != nil {
		s.Close()
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- m.Serve() }()
	if err := m.AllowOwnUse(); err != nil {
		t.Error(err)
	}
	return m, func() error { return errors.Join(<-served, s.Close()) }
}

// soon bounds an unmount that nothing should delay.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// wantMounts fails unless the mounts at point, from the top, have these sources.
func wantMounts(t *testing.T, when, point string, sources ...string) {
	t.Helper()
	var found []string
	for _, m := range allAt(t, point) {
		found = append(found, m.source)
	}
	if !slices.Equal(found, sources) {
		t.Errorf("%s, from the top: %v, want %v", when, found, sources)
	}
}

// startChild starts another process of this program as a daemon. What it prints first is
// "mounted", if all is well.
func startChild(t *testing.T, data, point string, wrapper ...string) (said *bufio.Reader, child *exec.Cmd) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	argv := append(slices.Clone(wrapper), self, data, point)
	child = exec.Command(argv[0], argv[1:]...)
	child.Env = append(os.Environ(), "KV3FS_TEST_CHILD=daemon")
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { child.Process.Kill(); child.Wait() })
	return bufio.NewReader(out), child
}

func firstLine(r *bufio.Reader) string {
	line, _ := r.ReadString('\n')
	return strings.TrimSpace(line)
}

// The next daemon's mount takes the place of the dead one's, and leaves nothing when it stops.
func TestTakesOverADeadMount(t *testing.T) {
	point, data := newPoint(t)
	said, child := startChild(t, data, point)
	if line := firstLine(said); line != "mounted" {
		t.Fatalf("the child said %q", line)
	}
	held, err := os.Create(point + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer held.Close()
	child.Process.Kill()
	child.Wait()
	var st unix.Statfs_t
	if err := unix.Statfs(point, &st); err != unix.ENOTCONN {
		t.Fatalf("the dead mount answers %v", err)
	}
	m, stop := serveAt(t, point, data)
	wantMounts(t, "taken over", point, "hf3fs.next")
	if _, err := os.Stat(point + "/f"); err != nil {
		t.Error(err)
	}
	if err := m.Unmount(soon(t)); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	wantMounts(t, "stopped", point)
}

// However many daemons were killed, and wherever in a takeover, no dead mount stays.
func TestTakesOverSeveralDeadMounts(t *testing.T) {
	point, data := newPoint(t)
	for _, cluster := range []string{"first", "second", "third"} {
		mountDead(t, point, cluster)
	}
	m, stop := serveAt(t, point, data)
	wantMounts(t, "taken over", point, "hf3fs.next")
	// Clients that stay are cut off; that, too, leaves nothing.
	f, err := os.Create(point + "/f")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*busyRetryInterval)
	defer cancel()
	if err := m.Unmount(ctx); !errors.Is(err, unix.EBUSY) {
		t.Errorf("unmount: %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	wantMounts(t, "stopped", point)
}

func TestUnmountedByHandAfterATakeover(t *testing.T) {
	point, data := newPoint(t)
	mountDead(t, point, "dead")
	_, stop := serveAt(t, point, data)
	if err := unix.Unmount(point, 0); err != nil {
		t.Fatal(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	wantMounts(t, "unmounted", point)
}

// Whatever somebody has mounted over the daemon's mount is not the daemon's to remove.
func TestStopLeavesOthersMounts(t *testing.T) {
	point, data := newPoint(t)
	mountDead(t, point, "dead")
	m, stop := serveAt(t, point, data)
	mountDead(t, point, "other")
	ctx, cancel := context.WithTimeout(t.Context(), 2*busyRetryInterval)
	defer cancel()
	if err := m.Unmount(ctx); !errors.Is(err, ErrLeft) || !strings.Contains(err.Error(), "hf3fs.other") {
		t.Errorf("unmount beneath another mount: %v", err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	wantMounts(t, "stopped", point, "hf3fs.other", "hf3fs.next")
}

// A start that fails after the mount was made removes that mount, and not one that somebody
// has put over it meanwhile.
func TestFailedHandshakeLeavesOthersMounts(t *testing.T) {
	point, data := newPoint(t)
	s, err := tree.Open(data, tree.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for _, covered := range []bool{false, true} {
		m := &Mount{point: point}
		fd, err := m.attach(data, Options{Cluster: "failing"})
		if err != nil {
			t.Fatal(err)
		}
		if covered {
			mountDead(t, point, "other")
		}
		defer unix.Close(fd)
		null, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0) // no kernel answers there
		if err != nil {
			t.Fatal(err)
		}
		if err := m.start(s, &fakeControlDir{}, &fakeSettings{}, null, Options{}); err == nil || errors.Is(err, ErrLeft) != covered {
			t.Errorf("covered %v: %v", covered, err)
		}
		if covered {
			wantMounts(t, "failed beneath another mount", point, "hf3fs.other", "hf3fs.failing")
		} else {
			wantMounts(t, "failed", point)
		}
	}
}

// Where the lock of the mount point could not be had, a daemon that finds another one's new
// mount beside its own gives up.
func TestTwoAtOnceWithoutTheLock(t *testing.T) {
	point, _ := newPoint(t)
	mountDead(t, point, "dead")
	before := allAt(t, point)
	mountDead(t, point, "one")
	m := &Mount{point: point}
	if err := m.noteMounts(before); err != nil || len(m.buried) != 1 {
		t.Errorf("alone: %v, %+v", err, m)
	}
	mountDead(t, point, "two")
	if err := (&Mount{point: point}).noteMounts(before); err == nil || !strings.Contains(err.Error(), "another daemon") {
		t.Errorf("two at once: %v", err)
	}
}

// A dead mount that somebody else has removed leaves its number to the next one, which may
// be that of a living daemon.
func TestStopRemovesNoLivingMount(t *testing.T) {
	w := newWorld(t, Options{})
	daemontest.NeedRoot(t)
	stopped := &Mount{point: w.m.point, buried: []int{w.m.minor}}
	stopped.removeBuried()
	wantMounts(t, "stopped", w.m.point, "hf3fs.stage")
}

// use has a process use a file, until end is called.
func (w *world) use(t *testing.T) (end func()) {
	t.Helper()
	w.write("f", "used")
	file, err := os.Open(w.path("f"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	user := exec.Command("sleep", "1000")
	user.Stdin = file
	if err := user.Start(); err != nil {
		t.Fatal(err)
	}
	return func() {
		_ = user.Process.Kill()
		_ = user.Wait()
	}
}

// The numbers of a connection that has ended may be another mount's, which a stop leaves alone. Serve has not returned yet.
func TestStopLeavesMountWithItsNumbers(t *testing.T) {
	for name, act := range map[string]func(t *testing.T, m *Mount){
		"abort": func(_ *testing.T, m *Mount) { m.abort() },
		"abort as its daemon takes over": func(t *testing.T, m *Mount) {
			device, err := m.Device()
			if err != nil {
				t.Fatal(err)
			}
			if err := endInherited(device, &record{Minor: m.minor, Point: m.point}); err != nil {
				t.Error(err)
			}
		},
		"give up": func(t *testing.T, m *Mount) {
			device, err := m.Device()
			if err != nil {
				t.Fatal(err)
			}
			defer device.Close()
			at, err := m.look()
			if err != nil || at.gone {
				t.Fatal(at, err)
			}
			if err := EndMount(device, uint32(m.minor), at.path); err != nil {
				t.Error(err)
			}
		},
		"remove": func(t *testing.T, m *Mount) {
			if err := m.removeDead(); err != nil {
				t.Error(err)
			}
		},
		"unmount": func(t *testing.T, m *Mount) {
			ended := make(chan error, 1)
			go func() { ended <- m.Serve() }()
			if err := errors.Join(m.Unmount(soon(t)), <-ended); err != nil {
				t.Error(err)
			}
		},
		"unmount at once": func(t *testing.T, m *Mount) {
			m.ending.Store(true)
			over, cancel := context.WithCancel(t.Context())
			cancel()
			ended := make(chan error, 1)
			go func() { ended <- m.Serve() }()
			root := -1
			if err := errors.Join(m.wait(over, &root), <-ended); err != nil {
				t.Error(err)
			}
		},
		"hold": func(t *testing.T, m *Mount) {
			if root := m.root(); root >= 0 {
				unix.Close(root)
				t.Error("the other mount is held")
			}
		},
		"name users": func(t *testing.T, m *Mount) {
			if found := m.holders().Processes; len(found) > 0 {
				t.Errorf("users of the other mount: %v", found)
			}
		},
		"count calls": func(t *testing.T, m *Mount) {
			if n, err := m.waiting(); err == nil {
				t.Errorf("%d calls of the other mount", n)
			}
		},
		"say why": func(t *testing.T, m *Mount) {
			if why := m.whyEnded().Error(); !strings.Contains(why, "unmounted it") {
				t.Error(why)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, Options{})
			daemontest.NeedRoot(t)
			if name == "name users" {
				defer w.use(t)()
			}
			point, data := newPoint(t)
			s, err := tree.Open(data, tree.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			m, err := New(s, &fakeControlDir{}, &fakeSettings{}, point, Options{Cluster: "next"})
			if err != nil {
				t.Fatal(err)
			}
			if err := unix.Unmount(point, 0); err != nil {
				t.Fatal(err)
			}
			m.id, m.minor = w.m.id, w.m.minor // the kernel gives them to the next mount
			act(t, m)
			wantMounts(t, name, w.dir, "hf3fs.stage")
			var st unix.Statfs_t
			if err := unix.Statfs(w.dir, &st); err != nil {
				t.Errorf("another mount: %v", err)
			}
			select {
			case <-m.served:
			default:
				if err := m.Serve(); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// A living daemon's mount is refused also where a dead one's hides it.
func TestRefusesALivingDaemonBeneathADeadOne(t *testing.T) {
	w := newWorld(t, Options{})
	daemontest.NeedRoot(t)
	mountDead(t, w.dir, "dead")
	until(t, "the living one says that the dead one hides it", func() bool { return strings.Contains(w.log.String(), "mounted over") })
	w.log.forget()
	_, err := New(w.tree, w.control, w.settings, w.dir, Options{Cluster: "two"})
	if err == nil || !strings.Contains(err.Error(), "hf3fs.stage") {
		t.Errorf("error %v", err)
	}
	wantMounts(t, "refused", w.dir, "hf3fs.stage")
}

// Of daemons that start at once one gets the mount point, whether a dead mount is there or
// nothing.
func TestStartsAtOnce(t *testing.T) {
	for name, prepare := range map[string]func(t *testing.T, point string){
		"nothing there": func(*testing.T, string) {},
		"a dead mount":  func(t *testing.T, point string) { mountDead(t, point, "dead") },
	} {
		t.Run(name, func(t *testing.T) {
			point, _ := newPoint(t)
			prepare(t, point)
			const daemons = 4
			var all []*bufio.Reader
			for range daemons {
				said, _ := startChild(t, t.TempDir(), point)
				all = append(all, said)
			}
			mounted := 0
			for _, said := range all {
				switch line := firstLine(said); {
				case line == "mounted":
					mounted++
				case !strings.Contains(line, "its daemon is alive"):
					t.Errorf("a child said %q", line)
				}
			}
			if mounted != 1 {
				t.Errorf("%d daemons mounted", mounted)
			}
		})
	}
}

// A container that was given the mount point itself, or the directory above it, as a slave,
// follows to the next daemon. That leaves the dead mount beneath its own only if the container has that itself.
func TestContainersFollow(t *testing.T) {
	for _, c := range []struct {
		given, file string
		mounts      []string
	}{
		{"mnt", "f", []string{"hf3fs.next", "hf3fs.dead"}},
		{".", "mnt/f", []string{"hf3fs.next"}},
	} {
		t.Run(c.given, func(t *testing.T) {
			point, data := newPoint(t)
			top := filepath.Dir(point)
			if err := unix.Mount(top, top, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			defer unix.Unmount(top, unix.MNT_DETACH)
			if err := unix.Mount("", top, "", unix.MS_SHARED, ""); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(data+"/f", []byte("hello"), 0o644); err != nil {
				t.Fatal(err)
			}
			mountDead(t, point, "dead")
			inside := t.TempDir()
			container := exec.Command("unshare", "-m", "--propagation", "slave", "sh", "-c",
				`mount --rbind "$0" "$1" && echo bound && while read line; do cat "$2"; echo; done`,
				filepath.Join(top, c.given), inside, filepath.Join(inside, c.file))
			stdin, err := container.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			stdout, err := container.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := container.Start(); err != nil {
				daemontest.NotTested(t, "mount namespaces: "+err.Error())
			}
			end := sync.OnceFunc(func() { stdin.Close(); container.Wait() })
			defer end()
			said := bufio.NewReader(stdout)
			if line := firstLine(said); line != "bound" {
				daemontest.NotTested(t, "mount namespaces: "+line)
			}
			m, stop := serveAt(t, point, data)
			wantMounts(t, "taken over", point, c.mounts...)
			io.WriteString(stdin, "\n")
			if line := firstLine(said); line != "hello" {
				t.Errorf("the container reads %q", line)
			}
			end()
			if err := m.Unmount(soon(t)); err != nil {
				t.Error(err)
			}
			if err := stop(); err != nil {
				t.Error(err)
			}
			wantMounts(t, "stopped", point)
		})
	}
}

// In a user namespace the host's mounts can be covered, but not removed.
func TestTakesOverInAUserNamespace(t *testing.T) {
	point, data := newPoint(t)
	mountDead(t, point, "first")
	mountDead(t, point, "second")
	namespace := []string{"unshare", "--user", "--map-root-user", "--mount"}
	if out, err := exec.Command(namespace[0], append(namespace[1:], "true")...).CombinedOutput(); err != nil {
		daemontest.NotTested(t, "user namespaces: "+string(out))
	}
	said, _ := startChild(t, data, point, namespace...)
	if line := firstLine(said); line != "mounted" {
		t.Errorf("the child said %q", line)
	}
}

// What a dead daemon's clients had open with passthrough counts as open until they have closed it, and not for longer: then it
// can be evicted.
func TestDeadMountKeepsNothingOpen(t *testing.T) {
	point, data := newPoint(t)
	said, child := startChild(t, data, point)
	if line := firstLine(said); line != "mounted" {
		t.Fatalf("the child said %q", line)
	}
	f, err := os.Create(point + "/f")
	if err != nil {
		t.Fatal(err)
	}
	if !canMap(t, point+"/f") {
		daemontest.NotTested(t, "no passthrough here")
	}
	child.Process.Kill()
	child.Wait()
	m, stop := serveAt(t, point, data)
	backing, err := unix.Open(data+"/f", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(backing)
	lease := func() error {
		_, err := unix.FcntlInt(uintptr(backing), unix.F_SETLEASE, unix.F_WRLCK)
		return err
	}
	if err := lease(); err != unix.EAGAIN {
		t.Errorf("a lease of a file that is open: %v", err)
	}
	f.Close()
	until(t, "the file can be leased", func() bool { return lease() == nil })
	if err := m.Unmount(soon(t)); err != nil {
		t.Error(err)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
}

// Without root the helper mounts, and it does so over no dead mount. What clients wrote
// meanwhile is reported.
func TestHelperRemovesTheDeadMountFirst(t *testing.T) {
	if _, err := exec.LookPath(helperName()); err != nil {
		daemontest.NotTested(t, err.Error())
	}
	point, _ := newPoint(t)
	if err := os.WriteFile(point+"/lost", nil, 0o644); err != nil {
		t.Fatal(err)
	}
	mountDead(t, point, "dead")
	var text bytes.Buffer
	fd, err := attachByHelper(point, Options{Cluster: "next", Log: slog.New(slog.NewTextHandler(&text, nil))})
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	wantMounts(t, "taken over", point, "hf3fs.next")
	if !strings.Contains(text.String(), "only root") || !strings.Contains(text.String(), "[lost]") {
		t.Errorf("logged %q", text.String())
	}
}

// Another user who holds the lock delays a start, and cannot prevent it.
func TestPointLockIsBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: waits for a timeout")
	}
	point := t.TempDir() + "/mnt"
	defer lockPoint(point)()
	began := time.Now()
	lockPoint(point)()
	if took := time.Since(began); took < pointLockTimeout/2 {
		t.Errorf("two have the lock after %v", took)
	}
}
