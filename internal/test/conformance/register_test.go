package conformance

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/usrbio"
)

// Cases 12 to 26: registration of buffers and rings.

const (
	alice = 12345
	bob   = 12346
)

var submitLinks = []string{"submit-ios.ph", "submit-ios", "submit-ios.pl"}

func eachSeesOwn(t *testing.T) {
	w := shared(t)
	daemontest.NeedRoot(t)
	// Only this test has these users, so they see exactly what they registered.
	a, b := w.toolAs(t, 22001), w.toolAs(t, 22002)
	idA := a.ok("iovcreate v %s 4096 0 -1", w.Mount).kv["uuid"]
	idB := b.ok("iovcreate v %s 4096 0 -1", w.Mount).kv["uuid"]
	for id, c := range map[string]*tool{idA: a, idB: b} {
		got := c.ok("list %s", w.iovs("")).rest
		if !slices.Equal(got, append(slices.Clone(submitLinks), id)) {
			t.Errorf("sees %v", got)
		}
	}
	for _, name := range namesIn(t, w.iovs("")) {
		if name == idA || name == idB {
			t.Error("root sees registrations of others")
		}
	}
}

func othersKey(t *testing.T) {
	w := shared(t)
	daemontest.NeedRoot(t)
	a, b := w.toolAs(t, alice), w.toolAs(t, bob)
	id := a.ok("iovcreate v %s 4096 0 -1", w.Mount).kv["uuid"]
	for _, c := range []*tool{b, w.tool(t)} { // root has no override
		c.fails(int(syscall.EPERM), "readlink %s", w.iovs(id))
		c.fails(int(syscall.EPERM), "unlink %s", w.iovs(id))
		c.fails(int(syscall.ENOENT), "readlink %s", w.iovs(wire.NewUUID().String()))
	}
	a.ok("readlink %s", w.iovs(id))
	a.ok("iovdestroy v")
	a.fails(int(syscall.ENOENT), "readlink %s", w.iovs(id))
}

func submitLinkStays(t *testing.T, w *world) {
	for _, name := range submitLinks {
		wantErrno(t, "unlink "+name, os.Remove(w.iovs(name)), syscall.EPERM)
		if target, err := os.Readlink(w.iovs(name)); err != nil || !strings.HasPrefix(target, "/dev/shm/sem.hf3fs-submit-ios.") {
			t.Error(name, target, err)
		}
	}
}

func nothingElseInIovs(t *testing.T, w *world) {
	wantErrno(t, "mkdir", os.Mkdir(w.iovs("d"), 0o755), syscall.EPERM)
	wantErrno(t, "touch", os.WriteFile(w.iovs("f"), nil, 0o644), syscall.EPERM)
	wantErrno(t, "mkfifo", unix.Mkfifo(w.iovs("p"), 0o644), syscall.EPERM)
	f := write(t, w.dir(t)+"/f", nil)
	wantErrno(t, "link", os.Link(f, w.iovs("l")), syscall.EPERM)
	wantErrno(t, "rename into", os.Rename(f, w.iovs("r")), syscall.EPERM)
	wantErrno(t, "rename from", os.Rename(w.iovs("submit-ios"), f+"2"), syscall.EPERM)
	inClosed := syscall.EPERM
	if os.Geteuid() != 0 {
		inClosed = syscall.EACCES // from the kernel: 3fs-virt has mode 0555
	}
	wantErrno(t, "rmdir", unix.Rmdir(w.iovs("")), inClosed)
	wantErrno(t, "chmod", os.Chmod(w.iovs(""), 0o700), syscall.EPERM)
	wantErrno(t, "mkdir in 3fs-virt", os.Mkdir(w.virtual("x"), 0o755), inClosed)
	wantErrno(t, "rename 3fs-virt", os.Rename(w.virtual(""), w.Mount+"/y"), syscall.EPERM)
}

// link registers an object of so many bytes under a name, and ends the registration.
func link(t *testing.T, w *world, sizeBytes int64, name string) error {
	t.Helper()
	path, _ := object(t, sizeBytes)
	err := os.Symlink(path, w.iovs(name))
	if err == nil {
		must(t, os.Remove(w.iovs(name)))
	}
	return err
}

func badUUID(t *testing.T, w *world) {
	for _, name := range []string{"foo", "foo.r0.t0", strings.ReplaceAll(wire.NewUUID().String(), "-", ""), "{" + wire.NewUUID().String() + "}"} {
		wantErrno(t, name, link(t, w, 16528, name), syscall.EIO)
	}
	if err := link(t, w, 16528, strings.ToUpper(wire.NewUUID().String())); err != nil {
		t.Error("upper case:", err)
	}
}

func badItems(t *testing.T, w *world) {
	for _, items := range []string{
		".b0", ".b-1", ".t5", ".f1", ".ph", ".r0.px", ".r0.t-1", ".r0.t0.f2", ".r0.t0.f12", ".b16529", ".w200.t0",
	} {
		wantErrno(t, items, link(t, w, 16528, wire.NewUUID().String()+items), syscall.EINVAL)
	}
	for _, items := range []string{
		"", ".b1", ".b16528", ".r", ".w", ".r0", ".r0.t0", ".r128.t0", ".w-4.t20", ".r-100000.t0", ".r0.t0.f", ".r0.t0.f10",
		".r0.t0.f11", ".r0.pn.t0", ".r0.p.t0", ".r0.phigh.t7", ".w3.pl.t1", ".r0.x9.t0", ".r0..t0", ".r5.r0.t0",
	} {
		if err := link(t, w, 16528, wire.NewUUID().String()+items); err != nil {
			t.Errorf("%q: %v", items, err)
		}
	}
}

func depthBeyondRing(t *testing.T, w *world) {
	wantErrno(t, "129 of 128", link(t, w, 16528, wire.NewUUID().String()+".r129.t0"), syscall.EINVAL)
	if err := link(t, w, 16528, wire.NewUUID().String()+".r128.t0"); err != nil {
		t.Error(err)
	}
	w.tool(t).fails(-int(syscall.EINVAL), "iorcreate r %s 4 r 5 -1", w.Mount)
	_, err := w.client(t).NewRing(context.Background(), usrbio.RingOptions{Entries: 4, IODepth: 5})
	wantErrno(t, "usrbio", err, syscall.EINVAL)
}

func badTarget(t *testing.T, w *world) {
	dir := "/dev/shm/kv3fs-" + wire.NewUUID().String()
	must(t, os.Mkdir(dir, 0o755))
	defer os.Remove(dir)
	for _, target := range []string{"/dev/shm/no-such-" + wire.NewUUID().String(), dir, "relative"} {
		wantErrno(t, target, os.Symlink(target, w.iovs(wire.NewUUID().String())), syscall.EINVAL)
	}
	// Changed: what lies elsewhere is not looked at.
	for _, target := range []string{"/dev/shm", "/", "/dev/null", "/no-such"} {
		wantErrno(t, target, os.Symlink(target, w.iovs(wire.NewUUID().String())), syscall.EACCES)
	}
}

func targetElsewhere(t *testing.T, w *world) {
	f := filepath.Join(daemontest.NewDir(t), "regular")
	must(t, os.WriteFile(f, make([]byte, 8192), 0o666))
	wantErrno(t, f, os.Symlink(f, w.iovs(wire.NewUUID().String())), syscall.EACCES)
	path, _ := object(t, 4096)
	name := wire.NewUUID().String()
	must(t, os.Symlink("/dev//shm//"+filepath.Base(path), w.iovs(name)))
	if target, _ := os.Readlink(w.iovs(name)); target != path {
		t.Errorf("normal form %q", target)
	}
	must(t, os.Remove(w.iovs(name)))
}

func tinyObjects(t *testing.T, w *world) {
	id := func() string { return wire.NewUUID().String() }
	wantErrno(t, "empty iov", link(t, w, 0, id()), syscall.EINVAL)
	wantErrno(t, "empty ring", link(t, w, 0, id()+".r0.t0"), syscall.EINVAL)
	for _, size := range []int64{1, 4096, 4143, 4144, 4239, 4240, 4335} {
		wantErrno(t, fmt.Sprint(size), link(t, w, size, id()+".r0.t0"), syscall.EINVAL)
		wantErrno(t, fmt.Sprint(size), link(t, w, size, id()+".w-2.t0"), syscall.EINVAL)
	}
	if err := link(t, w, 4336, id()+".r0.t0"); err != nil {
		t.Error(err)
	}
	c := w.tool(t)
	for _, entries := range []int{0, -1, -20, -44} {
		c.fails(-int(syscall.EINVAL), "iorcreate r %s %d r 0 -1", w.Mount, entries)
	}
	c.fails(-int(syscall.EINVAL), "iovcreate v %s 0 0 -1", w.Mount)
	c.fails(-int(syscall.EINVAL), "iovcreate v %s 4096 8192 -1", w.Mount)
	if a := c.ok("list %s", w.iovs("")); a.code != 0 || !w.Alive() {
		t.Error(a.line)
	}
}

func itemsInAnyOrder(t *testing.T, w *world) {
	f, err := os.OpenFile(w.dir(t)+"/f", os.O_RDWR|os.O_CREATE, 0o644)
	must(t, err)
	defer f.Close()
	r := newRawRing(t, w, 8, ".t0.ph.w4", "submit-ios.ph")
	id, mem := rawIov(t, w, 4096, "")
	mem.CopyIn(0, pattern(4096, 9))
	for i := range int32(3) {
		r.push(i, wire.Args{BufID: id, BufOff: uint64(i) * 1024, FileIno: inoOf(t, f), FileOff: uint64(i) * 1024, Len: 1024, Userdata: uint64(100 + i)})
	}
	r.submit.Post()
	if got := r.reap(1, 100*time.Millisecond); len(got) != 0 {
		t.Errorf("a depth of 4 executed %+v of 3", got)
	}
	r.push(3, wire.Args{BufID: id, BufOff: 3072, FileIno: inoOf(t, f), FileOff: 3072, Len: 1024, Userdata: 103})
	r.submit.Post()
	got := r.reap(4, patience)
	for _, c := range got {
		if c.Result != 1024 || c.Userdata != uint64(100+c.Index) {
			t.Errorf("%+v", c)
		}
	}
	if len(got) != 4 {
		t.Errorf("%d completions", len(got))
	}
	fileHolds(t, f.Name(), 0, 4096, 9)
}

func inoOf(t *testing.T, f *os.File) uint64 {
	t.Helper()
	var st unix.Statx_t
	must(t, unix.Statx(int(f.Fd()), "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO, &st))
	return st.Ino
}

// ringNameGone checks, for both libraries, that the ring's object has no name once the
// ring exists, and that the ring works.
func ringNameGone(t *testing.T, w *world, l library) {
	before := registered(t, w)
	r := l.ring(ringOptions{entries: 4})
	var target string
	for _, name := range registered(t, w) {
		// Other tests register at the same time, so try several rings.
		if !slices.Contains(before, name) && strings.Contains(name, ".r0.t0") {
			if to, err := os.Readlink(w.iovs(name)); err == nil {
				target = to
			}
		}
	}
	if !strings.HasPrefix(target, "/dev/shm/hf3fs-iov-") {
		t.Fatalf("target %q", target)
	}
	eventually(t, target+" has no name any more", func() bool {
		_, err := os.Lstat(target)
		return errors.Is(err, syscall.ENOENT)
	})
	f := l.open(write(t, w.dir(t)+"/f", pattern(100, 1)), "rdonly")
	b := l.buffer(4096, 0)
	expect(t, 100, r, b, 0, f, 0, 4096)
	holds(t, b, 0, 100, 1)
}

func registered(t *testing.T, w *world) []string {
	t.Helper()
	return namesIn(t, w.iovs(""))
}

func unlinkedObjectC(t *testing.T, w *world, c *tool) {
	f := write(t, w.dir(t)+"/f", pattern(4096, 3))
	id := wire.NewUUID().String()
	name := "psm_" + id[:8]
	c.ok("shm m %s 8192", name)
	c.ok("symlink /dev/shm/%s %s", name, w.iovs(id))
	c.ok("shm_unlink %s", name)
	c.ok("iovwrap v m %s %s 8192 0 -1", id, w.Mount)
	c.ok("iorcreate r %s 4 r 0 -1", w.Mount)
	c.ok("open f %s rdonly", f)
	c.ok("reg f")
	c.ok("prep r v r 4096 f 0 4096 1")
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 4096 {
		t.Error(got)
	}
	c.ok("check v 4096 4096 3")
	c.ok("unlink %s", w.iovs(id))
	// The library's own, bound to a NUMA node.
	target := c.ok("readlink %s", w.iovs(c.ok("iovcreate u %s 8192 0 0", w.Mount).kv["uuid"])).kv["target"]
	c.ok("iovunlink u")
	wantGone(t, target)
	c.ok("prep r u r 0 f 0 4096 1")
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 4096 {
		t.Error(got)
	}
	c.ok("check u 0 4096 3")
	c.ok("iovdestroy u")
}

func unlinkedObjectGo(t *testing.T, w *world) {
	l := newGoLibrary(t, w)
	f := l.open(write(t, w.dir(t)+"/f", pattern(4096, 3)), "rdonly")
	path, _ := object(t, 8192)
	v, err := l.m.RegisterIov(context.Background(), filepath.Base(path), usrbio.IovOptions{})
	must(t, err)
	must(t, os.Remove(path))
	b := &goBuffer{t, v}
	expect(t, 4096, l.ring(ringOptions{entries: 4}), b, 4096, f, 0, 4096)
	holds(t, b, 4096, 4096, 3)
}

func layoutC(t *testing.T, w *world, c *tool) {
	for n, want := range map[int]int64{1: 4336, 100: 13840, 128: 16528, 1024: 102544} {
		if got := c.ok("iorsize %d", n).num(t, "bytes"); got != want {
			t.Errorf("%d entries: %d bytes, want %d", n, got, want)
		}
	}
	c.ok("iorcreate r %s 128 r 0 -1", w.Mount)
	if n := c.ok("entries r").num(t, "n"); n != 128 {
		t.Errorf("%d entries", n)
	}
	if n := c.ok("markers r").num(t, "ring_len"); n != 129 {
		t.Errorf("ring length %d", n)
	}
}

func layoutGo(t *testing.T) {
	l, ok := wire.LayoutOf(wire.RingBytes(128))
	if !ok || wire.RingBytes(128) != 16528 || l.ArgsOff(0) != 16 || l.CqeOff(0) != 7240 || l.SqeOff(0) != 10336 || l.SemOff() != 12400 || l.Entries() != 128 {
		t.Errorf("%d bytes, %+v", wire.RingBytes(128), l)
	}
}

func semInitialisedC(t *testing.T, w *world, c *tool) {
	c.ok("iorcreate r %s 128 r 0 -1", w.Mount)
	if got := c.ok("peek r 12400 12").kv["hex"]; got != "000000000000000080000000" {
		t.Errorf("sem_t begins %s", got)
	}
}

func semInitialisedRaw(t *testing.T) {
	w := shared(t)
	path, mem := object(t, 16528)
	mem.CopyIn(12400, []byte{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}) // the daemon must not rely on zeros
	name := wire.NewUUID().String() + ".r0.t0"
	must(t, os.Symlink(path, w.iovs(name)))
	b := make([]byte, 12)
	mem.CopyOut(b, 12400)
	if hexOf(b) != "000000000000000080000000" {
		t.Errorf("sem_t begins %x", b)
	}
	must(t, os.Remove(w.iovs(name)))
}
