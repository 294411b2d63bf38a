package conformance

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/wire"
	"github.com/kv3fs/kv3fs/usrbio"
)

// Cases 1 to 11: how clients find and recognise the mount.

func mountinfoLine(t *testing.T, w *world) {
	table, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(table)) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), " ")
		if len(f) < 10 || f[4] != w.Mount {
			continue
		}
		// Clients count from the end: type, source, super options.
		if f[len(f)-3] != "fuse.hf3fs" || f[len(f)-2] != "hf3fs.stage" {
			t.Errorf("type %s, source %s", f[len(f)-3], f[len(f)-2])
		}
		for _, option := range []string{"default_permissions", "max_read=1048576"} {
			if !strings.Contains(line, option) {
				t.Errorf("no %s in %s", option, line)
			}
		}
		return
	}
	t.Error("not in mountinfo")
}

func nestedFile(t *testing.T, w *world) string {
	t.Helper()
	dir := w.dir(t) + "/a"
	must(t, os.Mkdir(dir, 0o755))
	return write(t, dir+"/b", []byte("x"))
}

func findsMountC(t *testing.T, w *world, c *tool) {
	a := c.ok("extract %s", nestedFile(t, w))
	if a.kv["mount"] != w.Mount || a.num(t, "ret") != int64(len(w.Mount)+1) {
		t.Error(a.line)
	}
	c.fails(-1, "extract %s/no/such/path", w.Mount) // upstream aborts
}

func findsMountGo(t *testing.T, w *world) {
	if mp, err := usrbio.FindMount(context.Background(), nestedFile(t, w)); err != nil || mp != w.Mount {
		t.Errorf("%q, %v", mp, err)
	}
	if _, err := usrbio.FindMount(context.Background(), w.Mount+"/no/such/path"); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
}

func shortBuffer(t *testing.T, w *world, c *tool) {
	a := c.ok("extract %s %d", nestedFile(t, w), len(w.Mount))
	if a.num(t, "ret") <= int64(len(w.Mount)) || a.kv["mount"] != "-" {
		t.Error(a.line)
	}
	if a := c.ok("extract %s %d", nestedFile(t, w), len(w.Mount)+1); a.kv["mount"] != w.Mount {
		t.Error(a.line)
	}
}

func offMountC(t *testing.T, _ *world, c *tool) { c.fails(-1, "extract %s", daemontest.Dir(t)) }

func offMountGo(t *testing.T, _ *world) {
	if mp, err := usrbio.FindMount(context.Background(), daemontest.Dir(t)); !errors.Is(err, usrbio.ErrNotMounted) {
		t.Errorf("%q, %v", mp, err)
	}
}

// bound makes the two directories of case 5: one on the mount, with something
// in it, and a plain one to bind it to.
func bound(t *testing.T, w *world) (script, at string) {
	t.Helper()
	daemontest.NeedRoot(t)
	sub := w.dir(t)
	must(t, os.Mkdir(sub+"/3fs-virt", 0o755)) // where the control directory is bound to
	write(t, sub+"/x", pattern(8192, 5))
	at = daemontest.NewDir(t) + "/data"
	must(t, os.Mkdir(at, 0o755))
	return fmt.Sprintf("mount --bind %s %s; mount --bind %s %s/3fs-virt; exec \"$0\"", sub, at, w.virtual(""), at), at
}

func bindMountC(t *testing.T) {
	w := shared(t)
	script, at := bound(t, w)
	c := newTool(t, 0, script)
	if a := c.ok("extract %s/x", at); a.kv["mount"] != at {
		t.Fatal(a.line)
	}
	c.ok("open f %s/x rdonly", at)
	c.ok("reg f")
	c.ok("iovcreate v %s 8192 0 -1", at)
	c.ok("iorcreate r %s 4 r 0 -1", at)
	c.ok("prep r v r 0 f 0 8192 1")
	c.ok("submit r")
	if got := c.ok("wait r 1 1 30000").cqes(t); got[0].result != 8192 {
		t.Error(got)
	}
	c.ok("check v 0 8192 5")
}

func bindMountGo(t *testing.T) {
	w := shared(t)
	script, at := bound(t, w)
	out := runChild(t, script, "read", at+"/x")
	if want := fmt.Sprintf("mount %s\n%s\n", at, hexOf(pattern(16, 5))); out != want {
		t.Errorf("%q, want %q", out, want)
	}
}

// anyTypeC uses a mount that is not fuse.hf3fs but has a 3fs-virt.
func anyTypeC(t *testing.T) {
	at := daemontest.NewDir(t)
	daemontest.NeedRoot(t)
	c := newTool(t, 0, "mount -t tmpfs none "+at+"; mkdir "+at+"/3fs-virt; touch "+at+"/x; exec \"$0\"")
	c.fails(-1, "extract %s/x", at)
	c.ok("env HF3FS_USRBIO_DONT_CHECKFS_FOR_MP yes")
	if a := c.ok("extract %s/x", at); a.kv["mount"] != at {
		t.Error(a.line)
	}
	c.ok("env HF3FS_USRBIO_DONT_CHECKFS_FOR_MP 1")
	c.fails(-1, "extract %s/x", at)
}

func anyTypeGo(t *testing.T) {
	at := daemontest.NewDir(t)
	daemontest.NeedRoot(t)
	script := "mount -t tmpfs none " + at + "; mkdir " + at + "/3fs-virt; touch " + at + "/x; "
	if out := runChild(t, script+"exec \"$0\"", "find", at+"/x"); !strings.Contains(out, "not on a 3FS") {
		t.Error(out)
	}
	if out := runChild(t, script+"HF3FS_USRBIO_DONT_CHECKFS_FOR_MP=yes exec \"$0\"", "find", at+"/x"); out != at+"\n" {
		t.Error(out)
	}
}

func magicC(t *testing.T, w *world, c *tool) {
	dir := w.dir(t)
	write(t, dir+"/f", make([]byte, 4096))
	for i, open := range []string{
		dir + "/f rdonly", dir + "/f wronly", dir + "/f rdwr", dir + "/f rdonly,direct", dir + "/f wronly,direct",
		dir + " rdonly,directory", w.Mount + " rdonly", w.virtual("") + " rdonly", w.virtual("iovs") + " rdonly,directory",
		w.virtual("get-conf") + " rdonly", w.virtual("set-conf") + " rdonly", w.virtual("rm-rf") + " rdonly",
	} {
		name := fmt.Sprintf("f%d", i)
		c.ok("open %s %s", name, open)
		if a := c.ok("ioctl %s 0x80046802", name); a.kv["out"] != "ff5f3f8f" {
			t.Errorf("%s: magic: %s", open, a.line)
		}
		if a := c.ok("ioctl %s 0x80046803", name); a.kv["out"] != "01000000" {
			t.Errorf("%s: version: %s", open, a.line)
		}
		if a := c.ok("ioctl %s 0x80206800", name); a.kv["out"] != hexOf(append([]byte("stage"), make([]byte, 27)...)) {
			t.Errorf("%s: mount name: %s", open, a.line)
		}
		want := hexOf(binary.LittleEndian.AppendUint32(nil, uint32(len(w.Mount))))
		if a := c.ok("ioctl %s 0x80046801", name); a.kv["out"] != want {
			t.Errorf("%s: path offset: %s, want %s", open, a.line, want)
		}
		if a := c.ok("is_hf3fs %s", name); a.kv["value"] != "1" {
			t.Errorf("%s: %s", open, a.line)
		}
	}
}

func magicGo(t *testing.T, w *world) {
	dir := w.dir(t)
	write(t, dir+"/f", nil)
	for _, path := range []string{dir + "/f", dir, w.Mount, w.virtual(""), w.virtual("iovs")} {
		f, err := os.Open(path)
		must(t, err)
		defer f.Close()
		if is, err := usrbio.IsHF3FS(context.Background(), f); !is || err != nil {
			t.Error(path, err)
		}
		if v, err := unix.IoctlGetInt(int(f.Fd()), wire.IoctlGetVersion); err != nil || int32(v) != 1 {
			t.Error(path, v, err)
		}
	}
}

func notMagicC(t *testing.T, w *world, c *tool) {
	f := write(t, w.dir(t)+"/f", nil)
	c.ok("open p %s path", f)
	c.ok("open e /proc/self/exe rdonly")
	for _, fd := range []string{"p", "e", "-1", "12345"} {
		if a := c.ok("is_hf3fs %s", fd); a.kv["value"] != "0" {
			t.Error(fd, a.line)
		}
	}
}

func notMagicGo(t *testing.T, w *world) {
	fd, err := unix.Open(write(t, w.dir(t)+"/f", nil), unix.O_PATH|unix.O_CLOEXEC, 0)
	must(t, err)
	p := os.NewFile(uintptr(fd), "O_PATH")
	defer p.Close()
	e, err := os.Open("/proc/self/exe")
	must(t, err)
	defer e.Close()
	for _, f := range []*os.File{p, e} {
		if is, err := usrbio.IsHF3FS(context.Background(), f); is || err != nil {
			t.Error("taken for a 3FS:", is, err)
		}
	}
}

func unknownIoctl(t *testing.T, w *world, c *tool) {
	dir := w.dir(t)
	write(t, dir+"/f", nil)
	c.ok("open f %s/f rdwr", dir)
	c.ok("open d %s rdonly", dir)
	c.ok("open v %s rdonly", w.virtual(""))
	for _, fd := range []string{"f", "d", "v"} {
		for _, cmd := range []uint32{0x6863, 0x80046863, 0x40046863, 0xc0046863, 0x80046804} {
			c.fails(int(syscall.EINVAL), "ioctl %s %#x", fd, cmd)
		}
	}
}

func forceFsync(t *testing.T, w *world, c *tool) {
	dir := w.dir(t)
	write(t, dir+"/f", []byte("x"))
	c.ok("open f %s/f rdonly", dir)
	c.ok("open d %s rdonly", dir)
	c.ok("open v %s rdonly", w.virtual("iovs"))
	for _, fd := range []string{"f", "d", "v"} {
		c.ok("force_fsync %s", fd)
		if a := c.ok("ioctl_ptr %s 0x8004680b 1", fd); a.kv["ret"] != "0" {
			t.Error(fd, a.line)
		}
		if a := c.ok("ioctl %s 0x8004680b deadbeef", fd); a.kv["out"] != "deadbeef" {
			t.Errorf("%s: memory was written: %s", fd, a.line)
		}
	}
}

func virtualTree(t *testing.T, w *world) {
	want := map[string]struct {
		mode os.FileMode
		ino  uint64
	}{
		"":         {os.ModeDir | 0o555, 0xfffffffffffffffe},
		"rm-rf":    {os.ModeDir | 0o777, 0xfffffffffffffffd},
		"iovs":     {os.ModeDir | 0o777, 0xffffffff80000000},
		"get-conf": {os.ModeDir | 0o555, 0xffffffff00000000},
		"set-conf": {os.ModeDir | 0o777, 0xfffffffe80000000},

		"iovs/submit-ios.ph":    {os.ModeSymlink | 0o666, 0xffffffff7fffffff},
		"iovs/submit-ios":       {os.ModeSymlink | 0o666, 0xffffffff7ffffffe},
		"iovs/submit-ios.pl":    {os.ModeSymlink | 0o666, 0xffffffff7ffffffd},
		"get-conf/usr.readonly": {os.ModeSymlink | 0o400, 0xfffffffeffffffff - 9},
	}
	for name, is := range want {
		info, err := os.Lstat(w.virtual(name))
		must(t, err)
		st := info.Sys().(*syscall.Stat_t)
		if info.Mode() != is.mode || st.Ino != is.ino || st.Nlink != 1 || st.Mtim.Sec != 1685548800 {
			t.Errorf("%s: mode %v ino %#x nlink %d mtime %d", name, info.Mode(), st.Ino, st.Nlink, st.Mtim.Sec)
		}
	}
	names := namesIn(t, w.virtual(""))
	slices.Sort(names)
	if !slices.Equal(names, []string{"get-conf", "iovs", "rm-rf", "set-conf"}) {
		t.Error(names)
	}
	if root := namesIn(t, w.Mount); root[len(root)-1] != "3fs-virt" {
		t.Errorf("the root ends with %q", root[len(root)-1])
	}
	if _, err := os.Lstat(w.virtual("nope")); !errors.Is(err, syscall.ENOENT) {
		t.Error(err)
	}
	if n := len(namesIn(t, w.virtual("get-conf"))); n != 17 {
		t.Errorf("%d keys", n)
	}
	for _, empty := range []string{"rm-rf", "set-conf"} {
		if names := namesIn(t, w.virtual(empty)); len(names) != 0 {
			t.Error(empty, names)
		}
	}
}

// namesIn lists a directory, unsorted.
func namesIn(t *testing.T, dir string) []string {
	t.Helper()
	f, err := os.Open(dir)
	must(t, err)
	defer f.Close()
	names, err := f.Readdirnames(-1)
	must(t, err)
	return names
}

// ---- Go clients as separate processes ----

const childEnv = "KV3FS_CONFORMANCE_CHILD"

// runChild runs this binary as a child in a mount namespace prepared by script.
func runChild(t *testing.T, script, mode, arg string) string {
	t.Helper()
	cmd := exec.Command("/bin/sh", "-ec", script+` "$1"`, self(t), arg)
	cmd.Env = append(os.Environ(), childEnv+"="+mode)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS}
	cmd.Stderr = os.Stderr
	var out []byte
	var err error
	within(t, patience, "child "+mode, func() { out, err = cmd.Output() })
	must(t, err)
	return string(out)
}

// child is the main function of a child process. The test reads its output.
func child(mode string, args []string) int {
	if err := childMode(mode, args[0]); err != nil {
		fmt.Println(err)
	}
	return 0
}

func childMode(mode, path string) error {
	mp, err := usrbio.FindMount(context.Background(), path)
	if err != nil {
		return err
	}
	if mode == "find" {
		fmt.Println(mp)
		return nil
	}
	m, err := usrbio.Open(context.Background(), path)
	if err != nil {
		return err
	}
	iov, err := m.NewIov(context.Background(), 1<<20, usrbio.IovOptions{})
	if err != nil {
		return err
	}
	if err := iov.Unlink(); err != nil { // so that no name is left when the process is killed
		return err
	}
	r, err := m.NewRing(context.Background(), usrbio.RingOptions{Entries: 16, Write: mode == "write"})
	if err != nil {
		return err
	}
	switch mode {
	case "read":
		return childRead(m, r, iov, path)
	case "hold": // until killed
		fmt.Println("holding")
		select {}
	case "write": // until killed
		return childWrite(m, r, iov, path)
	}
	return errors.New("what is " + mode + "?")
}

func childRead(m *usrbio.Mount, r *usrbio.Ring, iov *usrbio.Iov, path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	file, err := m.Register(context.Background(), f)
	if err != nil {
		return err
	}
	q := []usrbio.Request{{File: file, Iov: iov, Bytes: 16}}
	if err := r.Do(context.Background(), q); err != nil {
		return err
	}
	if q[0].Result != 16 {
		return fmt.Errorf("result %d", q[0].Result)
	}
	fmt.Printf("mount %s\n%x\n", m.Path(), iov.Bytes()[:16])
	return nil
}

// childWrite writes until it is killed, 16 requests at a time.
func childWrite(m *usrbio.Mount, r *usrbio.Ring, iov *usrbio.Iov, path string) error {
	f, err := os.OpenFile(filepath.Join(path, fmt.Sprint("w", os.Getpid())), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	file, err := m.Register(context.Background(), f)
	if err != nil {
		return err
	}
	fmt.Println("writing")
	for {
		var q []usrbio.Request
		for i := range int64(16) {
			q = append(q, usrbio.Request{File: file, Iov: iov, FileOffset: i << 16, IovOffset: i << 16, Bytes: 1 << 16})
		}
		if err := r.Do(context.Background(), q); err != nil {
			return err
		}
	}
}
