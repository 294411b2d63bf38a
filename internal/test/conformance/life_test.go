package conformance

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/usrbio"
)

// Cases 61 to 66 and 78: processes that exit, and what they leave behind.

// goneFor waits until uid has no registration left, as seen by another process
// of that uid.
func goneFor(t *testing.T, w *world, uid uint32) {
	t.Helper()
	c := w.toolAs(t, uid)
	eventually(t, "all registrations of the dead process are removed", func() bool {
		return slices.Equal(c.ok("list %s", w.iovs("")).rest, submitLinks)
	})
}

func killedC(t *testing.T) {
	w := shared(t)
	const uid = 22061
	c := w.toolAs(t, uid)
	c.ok("thread iorcreate r %s 4 r 0 -1", w.Mount) // T1 makes the first ring
	c.ok("iovcreate v %s 65536 0 -1", w.Mount)
	if a := c.ok("list %s", w.iovs("")); len(a.rest) != 5 {
		t.Fatal(a.line)
	}
	c.send("thread kill")
	c.die()
	goneFor(t, w, uid)
}

// hold runs a Go client of uid until it is killed.
func hold(t *testing.T, w *world, uid uint32, mode, path string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(self(t), path)
	cmd.Env = append(os.Environ(), childEnv+"="+mode)
	cmd.Dir = "/"
	if uid != uint32(os.Getuid()) {
		daemontest.NeedRoot(t)
		cmd.SysProcAttr = asUser(uid)
	}
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	line := make(chan string, 1)
	go func() {
		s, _ := bufio.NewReader(out).ReadString('\n')
		line <- s
	}()
	select {
	case s := <-line:
		if !strings.HasPrefix(s, "holding") && !strings.HasPrefix(s, "writing") {
			t.Fatalf("the child printed %q", s)
		}
	case <-time.After(patience):
		t.Fatal("the child printed nothing")
	}
	return cmd
}

func killedGo(t *testing.T) {
	w := shared(t)
	const uid = 22161
	cmd := hold(t, w, uid, "hold", w.Mount)
	if a := w.toolAs(t, uid).ok("list %s", w.iovs("")); len(a.rest) != 5 {
		t.Fatal(a.line)
	}
	must(t, cmd.Process.Kill())
	goneFor(t, w, uid)
}

// Changed: upstream leaks the registrations of a second thread.
func killedSecondThread(t *testing.T) {
	w := shared(t)
	const uid = 22062
	c := w.toolAs(t, uid)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("thread iovcreate v %s 65536 0 -1", w.Mount)
	c.ok("thread iorcreate r2 %s 4 w 0 -1", w.Mount)
	// As a pure Python client does: register without opening the directory.
	id := wire.NewUUID().String()
	c.ok("thread shm m kv3fs-%s 4096", id)
	c.ok("thread symlink /dev/shm/kv3fs-%s %s", id, w.iovs(id))
	c.ok("shm_unlink kv3fs-%s", id)
	if a := c.ok("list %s", w.iovs("")); len(a.rest) != 7 {
		t.Fatal(a.line)
	}
	c.die()
	goneFor(t, w, uid)
}

// Changed: upstream drops the registrations of a thread that lists iovs.
func listingIsHarmless(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", pattern(100, 1)), "rdonly")
	b, r := l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
	if l, ok := l.(*cLibrary); ok {
		for range 3 {
			l.ok("list %s", w.iovs(""))
			l.ok("thread list %s", w.iovs(""))
		}
	} else {
		registered(t, w)
	}
	time.Sleep(20 * time.Millisecond) // nothing waits for the release of the directory
	expect(t, 100, r, b, 0, f, 0, 4096)
	holds(t, b, 0, 100, 1)
}

func forkedChildKeepsRing(t *testing.T) {
	w := shared(t)
	const uid = 22064
	dir := w.dir(t)
	write(t, dir+"/f", pattern(100, 1))
	c := w.toolAs(t, uid)
	c.ok("open f %s/f rdonly", dir)
	c.ok("reg f")
	c.ok("iovcreate v %s 4096 0 -1", w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("fork_hold exit")
	c.cmd.Process.Wait() // the parent has exited; the child has our pipes
	for range 3 {
		c.ok("prep r v r 0 f 0 4096 1")
		c.ok("submit r")
		if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 100 {
			t.Errorf("%+v", got)
		}
	}
	c.ok("check v 0 100 1")
	c.send("kill")
	goneFor(t, w, uid)
}

func unlinkedUnderLoad(t *testing.T, w *world, l library) {
	f := l.open(write(t, w.dir(t)+"/f", pattern(1<<20, 1)), "rdonly")
	for range 20 {
		b, r := l.buffer(16<<20, 0), l.ring(ringOptions{entries: 16})
		for i := range int64(16) {
			r.prep(b, i<<20, f, 0, 1<<20, 1)
		}
		r.submit()
		r.close()
		b.close()
	}
	if !w.Alive() {
		t.Fatal(w.Log())
	}
	b := l.buffer(4096, 0)
	expect(t, 4096, l.ring(ringOptions{entries: 4}), b, 0, f, 0, 4096)
	holds(t, b, 0, 4096, 1)
}

// Changed: nothing is left, because this library unlinks the name it has created.
func flagsTwoC(t *testing.T) {
	w := shared(t)
	const uid = 22066
	c := w.toolAs(t, uid)
	for flags, want := range map[int]string{1: ".f1", 2: ".f10", 3: ".f11"} {
		id := c.ok("iorcreate4 r %s 4 r 0 0 -1 %d", w.Mount, flags).kv["uuid"]
		if a := c.ok("list %s", w.iovs("")); !slices.Contains(a.rest, id+".r0.t0"+want) {
			t.Errorf("no %s in %s", want, a.line)
		}
		c.ok("iordestroy r")
		if a := c.ok("list %s", w.iovs("")); len(a.rest) != 3 {
			t.Error(a.line)
		}
	}
}

// Changed: the daemon accepts the name by which upstream's library destroys such a ring.
func flagsAlias(t *testing.T, w *world) {
	for made, destroyed := range map[string]string{".r0.t0.f10": ".r0.t0.f2", ".w4.ph.t7.f11": ".w4.ph.t7.f3", ".r0.t0.f1": ".r0.t0.f1"} {
		path, _ := object(t, 16528)
		id := wire.NewUUID().String()
		must(t, os.Symlink(path, w.iovs(id+made)))
		if err := os.Remove(w.iovs(id + destroyed)); err != nil {
			t.Errorf("unlink %s: %v", destroyed, err)
		}
		for _, name := range registered(t, w) {
			if strings.HasPrefix(name, id) {
				t.Errorf("%s still exists", name)
			}
		}
	}
}

// semaphoresOf lists the semaphores that the links of a mount name.
func semaphoresOf(t *testing.T, w *world) (paths []string) {
	t.Helper()
	for _, name := range submitLinks {
		target, err := os.Readlink(w.iovs(name))
		must(t, err)
		paths = append(paths, target)
	}
	return paths
}

func restarted(t *testing.T, how syscall.Signal) {
	w := start(t, daemontest.Options{Flags: []string{"--drain", "300ms"}})
	path := w.Mount + "/f"
	write(t, path, pattern(4096, 1))
	old, oldGo := newCLibrary(t, w), newGoLibrary(t, w)
	var files [2]file
	var rings [2]ring
	var buffers [2]buffer
	for i, l := range []library{old, oldGo} {
		files[i], buffers[i], rings[i] = l.open(path, "rdonly"), l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
		expect(t, 4096, rings[i], buffers[i], 0, files[i], 0, 4096)
	}
	held, err := os.Open(path)
	must(t, err)
	defer held.Close()
	semaphores := semaphoresOf(t, w)
	w.signal(t, how)
	for _, s := range semaphores {
		if _, err := os.Lstat(s); (err == nil) != (how == syscall.SIGKILL) {
			t.Errorf("%s after %v: %v", s, how, err)
		}
	}
	next := start(t, daemontest.Options{Data: w.Data, Mount: w.Mount, Flags: []string{"--drain", "300ms"}})
	for _, s := range semaphores {
		if _, err := os.Lstat(s); !errors.Is(err, syscall.ENOENT) {
			t.Errorf("%s still exists: %v", s, err)
		}
	}
	// The old ring: wait of the C library returns nothing, that of the Go client an error.
	if _, errno := rings[0].prep(buffers[0], 0, files[0], 0, 100, 1); errno != 0 {
		t.Error(errno)
	}
	rings[0].submit()
	if got := rings[0].wait(1, 1, time.Second); len(got) != 0 {
		t.Errorf("%+v", got)
	}
	r := rings[1].(*goRing).r
	if _, err := r.Prepare(usrbio.Request{File: files[1].(*goFile).r, Iov: buffers[1].(*goBuffer).v, Bytes: 100, Userdata: 1}); err == nil {
		_, err = r.Wait(withDeadline(t, patience), make([]usrbio.Completion, 1), 1)
		wantErrno(t, "the Go client's wait", err, usrbioGone)
	} else {
		wantErrno(t, "the Go client's prepare", err, usrbioGone)
	}
	// The old descriptor: cut off, with EIO where the kernel served the file itself. It goes on
	// doing so for a daemon that was killed.
	switch n, err := held.ReadAt(make([]byte, 100), 0); {
	case err == nil && n == 100 && how == syscall.SIGKILL:
	case errors.Is(err, syscall.ENOTCONN) || errors.Is(err, syscall.ECONNABORTED) || errors.Is(err, syscall.EIO):
	default:
		t.Errorf("old descriptor: %d, %v", n, err)
	}
	// New connections work.
	throughBoth(t, next, func(t *testing.T, l library) {
		f, b, r := l.open(path, "rdwr"), l.buffer(4096, 0), l.ring(ringOptions{entries: 4})
		expect(t, 4096, r, b, 0, f, 0, 4096)
		holds(t, b, 0, 4096, 1)
	})
	// The process that survived the restart can open the mount again, too.
	old.ok("iordestroy %s", rings[0].(*cRing).name)
	old.ok("open g %s rdonly", path)
	old.ok("reg g")
	old.ok("iovcreate v2 %s 4096 0 -1", w.Mount)
	old.ok("iorcreate r2 %s 4 r 0 -1", w.Mount)
	old.ok("prep r2 v2 r 0 g 0 4096 1")
	old.ok("submit r2")
	if got := old.ok("wait r2 1 1 30000").cqes(t); len(got) != 1 || got[0].result != 4096 {
		t.Errorf("%+v", got)
	}
}

const usrbioGone = syscall.ENOTCONN // what errors.Is finds in usrbio.ErrDaemonGone

// ---- cases 67 to 76: orders given as symlinks and ioctls ----

func tree(t *testing.T, w *world) (dir, victim string) {
	t.Helper()
	dir = w.dir(t)
	victim = dir + "/d"
	must(t, os.MkdirAll(victim+"/a/b", 0o755))
	write(t, victim+"/f", []byte("x"))
	write(t, victim+"/a/b/f", []byte("x"))
	return dir, victim
}

func wantGone(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); !errors.Is(err, syscall.ENOENT) {
		t.Errorf("%s: %v", path, err)
	}
}

func wantThere(t *testing.T, path string) {
	t.Helper()
	if _, err := os.Lstat(path); err != nil {
		t.Error(err)
	}
}

func rmRf(t *testing.T, w *world) {
	dir, victim := tree(t, w)
	if out, err := shell(t, fmt.Sprintf("ln -s %s %s/x", victim, w.virtual("rm-rf"))); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	wantGone(t, victim)
	wantGone(t, w.behind(victim))
	must(t, os.Symlink(write(t, dir+"/one", nil), w.virtual("rm-rf/y"))) // a file, by symlink(2)
	wantGone(t, dir+"/one")
	write(t, dir+"/two", nil)
	must(t, os.Symlink(dir+"/./two", w.virtual("rm-rf/y"))) // and the same name again
	rel, err := filepath.Rel(w.Mount, dir)
	must(t, err)
	outside := daemontest.NewDir(t)
	for target, want := range map[string]syscall.Errno{
		rel: syscall.EINVAL, "d": syscall.EINVAL, outside: syscall.EINVAL, w.Mount: syscall.EINVAL, w.Mount + "/../" + filepath.Base(outside): syscall.EINVAL,
		dir + "/nope": syscall.ENOENT, dir + "/nope/x": syscall.ENOENT,
	} {
		wantErrno(t, target, os.Symlink(target, w.virtual("rm-rf/z")), want)
	}
	wantThere(t, dir)
	wantThere(t, outside)
}

// rmRfRights checks that another user's tree cannot be removed.
func rmRfRights(t *testing.T) {
	w := shared(t)
	dir := w.dir(t)
	a, b := w.toolAs(t, alice), w.toolAs(t, bob)
	a.ok("open f %s/f rdwr,creat", dir)
	must(t, os.Mkdir(dir+"/d", 0o755))
	write(t, dir+"/d/f", nil)
	must(t, os.Chmod(dir, 0o755))
	b.fails(int(syscall.EPERM), "symlink %s/f %s", dir, w.virtual("rm-rf/x"))
	b.fails(int(syscall.EPERM), "symlink %s/d %s", dir, w.virtual("rm-rf/x"))
	wantThere(t, dir+"/f")
	wantThere(t, dir+"/d/f")
}

func lnInsideRmRf(t *testing.T, w *world) {
	_, victim := tree(t, w)
	out, err := shell(t, fmt.Sprintf("cd %s && ln -s %s x", w.virtual("rm-rf"), victim))
	if err == nil || !strings.Contains(out, "Invalid argument") {
		t.Errorf("%v: %s", err, out)
	}
	wantThere(t, victim+"/a/b/f")
}

func mvIntoRmRf(t *testing.T, w *world) {
	dir, victim := tree(t, w)
	if out, err := shell(t, fmt.Sprintf("mv %s %s/", victim, w.virtual("rm-rf"))); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	wantGone(t, victim)
	wantGone(t, w.behind(victim))
	if names := namesIn(t, w.virtual("rm-rf")); len(names) != 0 {
		t.Error(names)
	}
	must(t, os.Mkdir(victim, 0o755)) // the name can be used again
	wantErrno(t, "out of rm-rf", os.Rename(w.virtual("rm-rf")+"/d", dir+"/e"), syscall.ENOENT)
}

func mvLink(t *testing.T, w *world) {
	dir := w.dir(t)
	must(t, os.Mkdir(dir+"/a", 0o755))
	must(t, os.Mkdir(dir+"/b", 0o755))
	write(t, dir+"/a/f", []byte("moved"))
	must(t, os.Symlink("mv:"+dir+"/a/f", dir+"/b/g"))
	if got, err := os.ReadFile(dir + "/b/g"); err != nil || string(got) != "moved" {
		t.Errorf("%q, %v", got, err)
	}
	wantGone(t, dir+"/a/f")
	wantErrno(t, "relative", os.Symlink("mv:a/f", dir+"/b/h"), syscall.EINVAL)
	wantErrno(t, "elsewhere", os.Symlink("mv:"+daemontest.NewDir(t), dir+"/b/h"), syscall.EINVAL)
	wantErrno(t, "missing", os.Symlink("mv:"+dir+"/a/f", dir+"/b/h"), syscall.ENOENT)
	wantErrno(t, "existing name", os.Symlink("mv:"+dir+"/b/g", dir+"/b"), syscall.EEXIST)
	must(t, os.Symlink("mv:"+dir+"/b/g", dir+"/b/h")) // within one directory
	wantThere(t, dir+"/b/h")
	// The kernel is told to forget the old name a moment later: the caller holds the lock
	// of the directory until its request is answered.
	eventually(t, "the old name is removed", func() bool {
		_, err := os.Lstat(dir + "/b/g")
		return errors.Is(err, syscall.ENOENT)
	})
}

func getConf(t *testing.T, w *world) {
	want := map[string]string{
		"usr.readonly": "false", "usr.enable_read_cache": "true", "usr.attr_timeout": "30.0", "usr.negative_timeout": "5.0",
		"sys.periodic_sync.interval": "'30s'", "sys.max_jobs_per_ioring": "32", "sys.io_job_deq_timeout": "'1ms'",
	}
	c := w.tool(t)
	for key, value := range want {
		if got, err := os.Readlink(w.virtual("get-conf/" + key)); err != nil || got != value {
			t.Errorf("%s: %q, %v; want %q", key, got, err, value)
		}
	}
	for _, bad := range []string{"nope", "readonly", "usr.nope", "sys.readonly", "usr."} {
		c.fails(int(syscall.EINVAL), "readlink %s", w.virtual("get-conf/"+bad))
	}
	for _, key := range namesIn(t, w.virtual("get-conf")) {
		if got, err := os.Readlink(w.virtual("get-conf/" + key)); err != nil || got == "" {
			t.Errorf("%s: %q, %v", key, got, err)
		}
	}
}

func setConf(t *testing.T) {
	w := shared(t)
	c, other := w.toolAs(t, 22072), w.toolAs(t, 22172)
	set := func(key string) string { return w.virtual("set-conf/" + key) }
	value := func(c *tool, key string) string {
		return c.ok("readlink %s", w.virtual("get-conf/"+key)).kv["target"]
	}
	c.ok("symlink false %s", set("usr.enable_read_cache"))
	if got := value(c, "usr.enable_read_cache"); got != "false" {
		t.Error(got)
	}
	if got := value(other, "usr.enable_read_cache"); got != "true" {
		t.Error(got)
	}
	// Older kernels answer a repetition from their cache, newer ones ask the daemon.
	if a := c.do("symlink false %s", set("usr.enable_read_cache")); a.code != 0 && a.code != int(syscall.EEXIST) {
		t.Error(a.line)
	}
	c.fails(int(syscall.EINVAL), "symlink 1 %s", set("usr.nope"))
	c.fails(int(syscall.EIO), "symlink perhaps %s", set("usr.readonly"))
	c.fails(int(syscall.EIO), "symlink soon %s", set("usr.attr_timeout"))
	c.ok("symlink 1.5 %s", set("usr.attr_timeout"))
	if got := value(c, "usr.attr_timeout"); got != "1.5" {
		t.Error(got)
	}
	c.fails(int(syscall.EPERM), "symlink 16 %s", set("sys.max_jobs_per_ioring")) // changed: upstream lets any user
	root := w.tool(t)
	root.fails(int(syscall.EINVAL), "symlink 1000000 %s", set("sys.storage.net_client.rdma_control.max_concurrent_transmission"))
	w.toolAs(t, 1_000_001).fails(int(syscall.EPERM), "symlink true %s", set("usr.readonly"))
}

func moveIoctl(t *testing.T, w *world, c *tool) {
	dir := w.dir(t)
	must(t, os.Mkdir(dir+"/to", 0o755))
	write(t, dir+"/f", []byte("x"))
	c.ok("open d %s rdonly", dir)
	c.ok("open e %s/to rdonly", dir)
	from, to := uint64(c.ok("fstat d").num(t, "ino")), uint64(c.ok("fstat e").num(t, "ino"))
	arg := func(src uint64, name string, dst uint64, newName string) string {
		b := make([]byte, 536)
		putUint64(b, src)
		copy(b[8:], name)
		putUint64(b[264:], dst)
		copy(b[272:], newName)
		for i := 529; i < 536; i++ {
			b[i] = ' ' // as upstream's own tool pads
		}
		return hexOf(b)
	}
	const move = 0x4218680E
	c.fails(int(syscall.EINVAL), "ioctl d %#x %s", move, arg(to, "f", to, "g"))
	c.fails(int(syscall.EINVAL), "ioctl d %#x %s", 0x4210680E, arg(from, "f", to, "g")) // 528 bytes
	c.fails(int(syscall.EINVAL), "ioctl d %#x %s", move, arg(from, "a/f", to, "g"))
	c.fails(int(syscall.ENOENT), "ioctl d %#x %s", move, arg(from, "nope", to, "g"))
	c.ok("ioctl d %#x %s", move, arg(from, "f", to, "g"))
	wantGone(t, dir+"/f")
	wantThere(t, dir+"/to/g")
	must(t, os.MkdirAll(dir+"/full/x", 0o755))
	c.fails(int(syscall.ENOTEMPTY), "ioctl d %#x %s", move, arg(from, "to", from, "full"))
	c.fails(int(syscall.EINVAL), "ioctl d %#x %s", move, arg(from, "to", to, "self"))
}

func removeIoctl(t *testing.T, w *world, c *tool) {
	dir, victim := tree(t, w)
	c.ok("open d %s rdonly", dir)
	parent := uint64(c.ok("fstat d").num(t, "ino"))
	arg := func(parent uint64, recursive byte) string {
		b := make([]byte, 272)
		putUint64(b, parent)
		copy(b[8:], "d")
		b[264] = recursive
		return hexOf(b)
	}
	const remove = 0x4110680F
	c.fails(int(syscall.ENOTEMPTY), "ioctl d %#x %s", remove, arg(parent, 0))
	c.fails(int(syscall.EINVAL), "ioctl d %#x %s", remove, arg(parent+1, 1))
	wantThere(t, victim+"/f")
	c.ok("ioctl d %#x %s", remove, arg(parent, 1))
	wantGone(t, victim)
	c.fails(int(syscall.ENOENT), "ioctl d %#x %s", remove, arg(parent, 1))
	// RECURSIVE_RM: on the directory itself, without an argument.
	must(t, os.MkdirAll(victim+"/a/b", 0o755))
	write(t, dir+"/f", nil)
	c.ok("open v %s rdonly", victim)
	c.ok("open f %s/f rdonly", dir)
	c.ok("open m %s rdonly", w.Mount)
	c.fails(int(syscall.ENOTDIR), "ioctl_ptr f 0x8004680A 1")
	c.fails(int(syscall.EINVAL), "ioctl_ptr m 0x8004680A 1")
	c.ok("ioctl_ptr v 0x8004680A 1")
	wantGone(t, victim)
}

func putUint64(b []byte, v uint64) {
	for i := range 8 {
		b[i] = byte(v >> (8 * i))
	}
}

func punchHole(t *testing.T, w *world, c *tool) {
	path := write(t, w.dir(t)+"/f", pattern(3*chunk, 1))
	c.ok("open f %s rdwr", path)
	c.ok("punchhole f 0 0:%d", chunk)
	c.fails(int(syscall.EINVAL), "punchhole f 0 1:%d", chunk)
	c.fails(int(syscall.EINVAL), "punchhole f 0 0:%d", chunk+1)
	c.fails(int(syscall.EINVAL), "punchhole f 0 %d:%d", 2*chunk, chunk)
	c.fails(int(syscall.EINVAL), "punchhole_n f 1001")
	got, err := os.ReadFile(path)
	must(t, err)
	want := append(make([]byte, chunk), pattern(3*chunk, 1)[chunk:]...)
	if string(got) != string(want) {
		t.Error("the file does not have zeros in the hole and its bytes elsewhere")
	}
	// The ring sees the hole, too. A read-only descriptor is enough if its user may
	// write the file.
	c.ok("reg f")
	c.ok("iovcreate v %s %d 0 -1", w.Mount, chunk)
	c.ok("iorcreate4 r %s 4 r 0 0 -1 2", w.Mount)
	c.ok("prep r v r 0 f 0 %d 1", chunk)
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != -int64(syscall.ENODATA) {
		t.Errorf("%+v", got)
	}
	if a := c.ok("fstat f"); a.num(t, "blksize") != chunk || a.num(t, "size") != 3*chunk {
		t.Error(a.line)
	}
	c.ok("open d %s rdonly", filepath.Dir(path))
	c.fails(int(syscall.EINVAL), "punchhole d 0 0:%d", chunk) // crashes upstream
	if os.Geteuid() == 0 {
		other := w.toolAs(t, alice) // changed: upstream requires no right
		other.ok("open f %s rdonly", path)
		other.fails(int(syscall.EPERM), "punchhole f 0 %d:%d", chunk, 2*chunk)
		fileHolds(t, path, chunk, chunk, 1+chunk)
	}
}

func hardlink(t *testing.T, w *world, c *tool) {
	dir := w.dir(t)
	write(t, dir+"/f", []byte("x"))
	c.ok("hardlink %s/f %s/g", dir, dir)
	c.fails(int(syscall.EEXIST), "hardlink %s/f %s/g", dir, dir)
	root := fmt.Sprintf("%s/linked-%s", w.Mount, wire.NewUUID())
	wantGone(t, root) // the kernel caches that
	c.ok("hardlink %s/f %s", dir, root)
	a, err := os.Stat(dir + "/f")
	must(t, err)
	b, err := os.Stat(root)
	must(t, err)
	if !os.SameFile(a, b) || a.Sys().(*syscall.Stat_t).Nlink != 3 {
		t.Errorf("%d links", a.Sys().(*syscall.Stat_t).Nlink)
	}
	if a := c.do("hardlink %s %s/h", dir, dir); a.code != int(syscall.EISDIR) && a.code != int(syscall.EPERM) {
		t.Errorf("a directory: %s", a.line)
	}
}
