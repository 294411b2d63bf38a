package fuseserver

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// keptMount is a mount whose daemons are children of the test, which holds its device.
type keptMount struct {
	t                  *testing.T
	data, state, point string
	o                  daemonOptions
	device             *os.File
	daemon             *exec.Cmd
	lines              <-chan string // what the daemon prints
	in                 io.Closer     // what a daemon with daemonOptions.Wait waits for
	starts             int
}

// daemonOptions say what such a daemon does.
type daemonOptions struct {
	Data, State, Point string
	Passthrough        Passthrough
	Cluster            string
	Block              uint32
	Twice              bool   // see Options.twice
	Hold               string // an operation, which it holds once; "": none
	After              bool   // when it has done it; otherwise before that
	Handles            string // see fakeControlDir.kept
	Wait               bool   // before it serves it prints "waits", and does so
}

func newKeptMount(t *testing.T, o daemonOptions) *keptMount {
	t.Helper()
	point, data := newPoint(t)
	if err := os.Chmod(data, 0o777); err != nil {
		t.Fatal(err)
	}
	daemontest.NeedMounts(t)
	state, err := os.MkdirTemp("/dev/shm", "kv3fs-outlive-test-")
	if err != nil {
		t.Skip("no tmpfs: ", err)
	}
	k := &keptMount{t: t, data: data, state: filepath.Join(state, "state"), point: point, o: o}
	t.Cleanup(func() {
		k.kill()
		if k.device != nil {
			k.device.Close()
		}
		os.RemoveAll(state)
	})
	k.start()
	return k
}

// start starts a daemon, the first or a successor, and returns when it serves.
func (k *keptMount) start() (said string) {
	k.t.Helper()
	said, err := k.tryStart()
	if err != nil {
		k.t.Fatal(err)
	}
	return said
}

func (k *keptMount) tryStart() (said string, err error) {
	ours, theirs, err := socketPair()
	if err != nil {
		return "", err
	}
	defer ours.Close()
	o := k.o
	o.Data, o.State, o.Point = k.data, k.state, k.point
	text, _ := json.Marshal(o)
	k.daemon = exec.Command("/proc/self/exe", string(text))
	k.daemon.Env = append(os.Environ(), "KV3FS_TEST_CHILD=outliving")
	k.daemon.ExtraFiles = []*os.File{theirs}
	if k.device != nil {
		k.daemon.ExtraFiles = append(k.daemon.ExtraFiles, k.device)
	}
	k.daemon.Stderr = os.Stderr
	if k.o.Wait {
		if k.in, err = k.daemon.StdinPipe(); err != nil {
			return "", err
		}
	}
	out, err := k.daemon.StdoutPipe()
	if err != nil {
		return "", err
	}
	if err := k.daemon.Start(); err != nil {
		return "", err
	}
	theirs.Close()
	k.starts++
	k.lines = linesOf(out)
	said = hear(k.t, k.lines)
	if said == "new" {
		if k.device != nil {
			k.device.Close()
		}
		fd, err := receiveFD(int(ours.Fd()))
		if err != nil {
			return "", err
		}
		k.device = os.NewFile(uintptr(fd), "/dev/fuse")
	}
	return said, nil
}

func socketPair() (ours, theirs *os.File, err error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	return os.NewFile(uintptr(pair[0]), "ours"), os.NewFile(uintptr(pair[1]), "theirs"), nil
}

// kill kills the daemon.
func (k *keptMount) kill() {
	if k.daemon != nil && k.daemon.Process != nil {
		_ = k.daemon.Process.Kill()
		_ = k.daemon.Wait()
		k.daemon = nil
	}
}

// restart kills the daemon and starts a successor, which must take the mount over.
func (k *keptMount) restart() {
	k.t.Helper()
	k.kill()
	if said := k.start(); said != "adopted" {
		k.t.Fatalf("the successor says %q", said)
	}
}

// client starts a child as a client of the mount.
func (k *keptMount) client(child string, args ...string) *client {
	k.t.Helper()
	c := &client{t: k.t, cmd: exec.Command("/proc/self/exe", args...)}
	c.cmd.Env = append(os.Environ(), "KV3FS_TEST_CHILD="+child)
	c.cmd.Stderr = os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		k.t.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		k.t.Fatal(err)
	}
	c.in, c.lines = in, linesOf(out)
	k.t.Cleanup(func() {
		_ = c.cmd.Process.Kill()
		_ = c.in.Close()
	})
	return c
}

type client struct {
	t     *testing.T
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines <-chan string
}

// linesOf reads what a child prints, until it ends.
func linesOf(out io.Reader) <-chan string {
	lines := make(chan string, 16)
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			lines <- s.Text()
		}
	}()
	return lines
}

// hear awaits a line.
func hear(t *testing.T, lines <-chan string) string {
	t.Helper()
	const patience = time.Minute
	select {
	case line, ok := <-lines:
		if !ok {
			return "ended"
		}
		return line
	case <-time.After(patience):
		t.Fatal("a child says nothing")
		return ""
	}
}

// say sends a line, and hear awaits one.
func (c *client) say(line string) {
	if _, err := fmt.Fprintln(c.in, line); err != nil {
		c.t.Error(err)
	}
}

func (c *client) hear() string {
	c.t.Helper()
	return hear(c.t, c.lines)
}

// ask is say and hear.
func (c *client) ask(line string) string {
	c.say(line)
	return c.hear()
}

// end has the client end.
func (c *client) end() error {
	_ = c.in.Close()
	return c.cmd.Wait()
}

// childOutliving is a daemon of a keptMount.
func childOutliving(args []string) error {
	var o daemonOptions
	if err := json.Unmarshal([]byte(args[0]), &o); err != nil {
		return err
	}
	if o.Cluster == "" {
		o.Cluster = "outlive"
	}
	signal.Ignore(syscall.SIGPIPE)
	const socket, device = 3, 4
	unix.CloseOnExec(socket)
	state, err := restart.Open(o.State, restart.Identity{Boot: "boot", Data: o.Data, Format: 1})
	if err != nil {
		return err
	}
	t, err := tree.Open(o.Data, tree.Options{State: state})
	if err != nil {
		return err
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	options := Options{Cluster: o.Cluster, Passthrough: o.Passthrough, BlockBytes: o.Block, State: state, twice: o.Twice, Log: log}
	if options.Recalled, err = Recall(t, state); err != nil {
		return err
	}
	var st unix.Stat_t
	if unix.Fstat(device, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFCHR {
		unix.CloseOnExec(device)
		options.Adopt = os.NewFile(device, "/dev/fuse")
		options.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	if o.Hold != "" && options.Adopt == nil {
		options.wrap = holding(o.Hold, o.After)
	}
	m, err := New(t, &fakeControlDir{links: map[string]string{}, point: o.Point, kept: o.Handles}, &fakeSettings{}, o.Point, options)
	if err != nil {
		return err
	}
	if o.Wait {
		fmt.Println("waits")
		_, _ = io.Copy(io.Discard, os.Stdin)
	}
	served := make(chan error, 1)
	go func() { served <- m.Serve() }()
	gates := make(chan os.Signal, 1)
	signal.Notify(gates, syscall.SIGUSR1)
	go func() {
		for range gates {
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			began := time.Now()
			err := m.Gate(ctx)
			cancel()
			if err != nil {
				fmt.Println(err)
			} else {
				fmt.Println("gated", time.Since(began))
			}
		}
	}()
	if m.Adopted() {
		fmt.Println("adopted")
		return <-served
	}
	fmt.Println("new")
	own, err := m.Device()
	if err != nil {
		return err
	}
	defer own.Close()
	if err := unix.Sendmsg(socket, []byte("dev!"), unix.UnixRights(int(own.Fd())), nil, 0); err != nil {
		return err
	}
	return <-served
}

// A mount goes on over kill -9 of its daemon: open files and directories, directories that processes are in, mappings,
// locks, listings that have begun; calls made meanwhile wait.
func TestMountOutlivesDaemon(t *testing.T) {
	for _, mode := range []Passthrough{PassthroughAuto, PassthroughOff} {
		t.Run(fmt.Sprintf("passthrough=%v", mode == PassthroughAuto), func(t *testing.T) {
			k := newKeptMount(t, daemonOptions{Passthrough: mode})
			for i := range 300 {
				if err := os.WriteFile(filepath.Join(k.data, fmt.Sprint("listed", i)), nil, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			c := k.client("op", k.point)
			for _, s := range []string{
				"mkdir sub", "cd sub", "create held", "write held before", "mkdir sub/dir", "opendir sub/dir",
				"lock held", "list-some", "map mapped",
			} {
				c.want(s, "ok")
			}
			k.kill()
			c.say("read held 6") // waits, unless the kernel has the file
			c2 := k.client("op", k.point)
			c2.say("create meanwhile")
			k.start()
			if got := c.hear(); got != "before" {
				t.Errorf("read of an open file: %s", got)
			}
			if got := c2.hear(); got != "ok" {
				t.Errorf("create without a daemon: %s", got)
			}
			for range 3 {
				for _, s := range []string{"write held again!", "cwd sub", "list-rest 300", "entries sub/dir 0", "locked held", "remap mapped", "statfs", "stat held"} {
					c.want(s, "ok")
				}
				if got := c.ask("read held 6"); got != "again!" {
					t.Errorf("read: %s", got)
				}
				k.restart()
			}
			for _, s := range []string{"close held", "close mapped", "remove sub/dir"} {
				c.want(s, "ok")
			}
			if err := errors.Join(c.end(), c2.end()); err != nil {
				t.Error(err)
			}
		})
	}
}

// A directory of 3fs-virt that a client has open is opened once, however many daemons it outlives, and released when it is closed.
func TestControlDirectoriesStayOpen(t *testing.T) {
	handles := t.TempDir()
	k := newKeptMount(t, daemonOptions{Handles: handles})
	open := func() (names []string) {
		entries, err := os.ReadDir(handles)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			names = append(names, e.Name())
		}
		return names
	}
	c := k.client("op", k.point)
	c.want("opendir 3fs-virt/iovs", "ok")
	before := open()
	if len(before) != 1 {
		t.Fatalf("open: %q", before)
	}
	if err := os.WriteFile(filepath.Join(handles, "1"), nil, 0o600); err != nil { // the daemon is killed before it has noted what it opened
		t.Fatal(err)
	}
	for range 2 {
		k.restart()
		c.want("entries 3fs-virt/iovs 0", "ok")
		if after := open(); !slices.Equal(after, before) {
			t.Errorf("open: %q, before: %q", after, before)
		}
	}
	c.want("close 3fs-virt/iovs", "ok")
	for end := time.Now().Add(time.Minute); len(open()) > 0; time.Sleep(time.Millisecond) { // the kernel releases it later
		if time.Now().After(end) {
			t.Fatalf("still open: %q", open())
		}
	}
	if err := c.end(); err != nil {
		t.Error(err)
	}
}

func (c *client) want(line, want string) {
	c.t.Helper()
	if got := c.ask(line); got != want {
		c.t.Errorf("%s: %s, want %s", line, got, want)
	}
}

// childOp does what it reads, line by line, in a mount.
func childOp(args []string) error {
	o := &operator{dir: args[0], files: map[string]*os.File{}, maps: map[string][]byte{}}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		said, err := o.do(strings.Fields(lines.Text()))
		switch {
		case err != nil:
			fmt.Println(err)
		case said == "":
			fmt.Println("ok")
		default:
			fmt.Println(said)
		}
	}
	return nil
}

type operator struct {
	dir     string
	files   map[string]*os.File
	maps    map[string][]byte
	listing *os.File
	listed  map[string]bool
}

func (o *operator) path(name string) string { return filepath.Join(o.dir, name) }

// do returns what an operation answers.
func (o *operator) do(s []string) (said string, err error) {
	name := ""
	if len(s) > 1 {
		name = s[1]
	}
	f := o.files[name]
	open := func(flags int) error {
		f, err := os.OpenFile(o.path(name), flags, 0o600)
		o.files[name] = f
		return err
	}
	switch s[0] {
	case "mkdir":
		return "", os.Mkdir(o.path(name), 0o755)
	case "mknod":
		return "", unix.Mknod(o.path(name), unix.S_IFREG|0o600, 0)
	case "rmdir":
		return "", unix.Rmdir(o.path(name))
	case "cd":
		return "", os.Chdir(o.path(name))
	case "cwd":
		var here, there unix.Stat_t
		if err := errors.Join(unix.Stat(".", &here), unix.Stat(o.path(name), &there)); err != nil || here.Ino != there.Ino {
			return "", fmt.Errorf("inode %d, not %d: %w", here.Ino, there.Ino, err)
		}
	case "create":
		return "", open(os.O_CREATE | os.O_EXCL | os.O_RDWR)
	case "create-ro": // whose mode lets nobody write
		var fd int
		if fd, err = unix.Open(o.path(name), unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o400); err == nil {
			o.files[name] = os.NewFile(uintptr(fd), name)
		}
		return "", err
	case "append-to":
		return "", open(os.O_APPEND | os.O_WRONLY)
	case "open":
		return "", open(os.O_RDWR)
	case "opendir":
		return "", open(os.O_RDONLY)
	case "write":
		_, err = f.WriteAt([]byte(s[2]), 0)
	case "append":
		_, err = f.Write([]byte(s[2]))
	case "read":
		b := make([]byte, 64)
		n, err := f.ReadAt(b, 0)
		if err == io.EOF {
			err = nil
		}
		return string(b[:n]), err
	case "readall":
		b, err := os.ReadFile(o.path(name))
		return string(b), err
	case "close":
		return "", f.Close()
	case "remove":
		return "", os.Remove(o.path(name))
	case "unlink":
		return "", unix.Unlink(o.path(name))
	case "rename":
		return "", os.Rename(o.path(name), o.path(s[2]))
	case "exchange":
		return "", unix.Renameat2(unix.AT_FDCWD, o.path(name), unix.AT_FDCWD, o.path(s[2]), unix.RENAME_EXCHANGE)
	case "link":
		return "", os.Link(o.path(name), o.path(s[2]))
	case "symlink":
		return "", os.Symlink(s[2], o.path(name))
	case "truncate":
		return "", os.Truncate(o.path(name), 3)
	case "setxattr":
		return "", unix.Setxattr(o.path(name), "user.test", []byte("value"), unix.XATTR_CREATE)
	case "removexattr":
		return "", unix.Removexattr(o.path(name), "user.test")
	case "stat":
		var st unix.Stat_t
		return "", unix.Fstat(int(f.Fd()), &st)
	case "fsync":
		return "", f.Sync()
	case "fchmod":
		return "", f.Chmod(0o640)
	case "statfs":
		var st unix.Statfs_t
		return "", unix.Statfs(o.dir, &st)
	case "entries":
		var names []string
		if names, err = f.Readdirnames(-1); err == nil && fmt.Sprint(len(names)) != s[2] {
			err = fmt.Errorf("has %q", names)
		}
		if err == nil {
			_, err = f.Seek(0, 0)
		}
	case "lock":
		return "", unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	case "locked":
		other, err := os.Open(o.path(name))
		if err != nil {
			return "", err
		}
		defer other.Close()
		if err := unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != unix.EWOULDBLOCK {
			return "", fmt.Errorf("lock by another: %w", err)
		}
	case "list-some":
		if o.listing, err = os.Open(o.dir); err == nil {
			o.listed = map[string]bool{}
			_, err = o.list(5)
		}
	case "list-rest":
		if o.listing == nil {
			return "", nil
		}
		for n := 1; n > 0 && err == nil; {
			n, err = o.list(50)
		}
		count := 0
		for name := range o.listed {
			if strings.HasPrefix(name, "listed") {
				count++
			}
		}
		if fmt.Sprint(count) != name {
			err = fmt.Errorf("%d of %s names", count, name)
		}
		err = errors.Join(err, o.listing.Close())
		o.listing = nil
	case "map":
		if err := errors.Join(os.WriteFile(o.path(name), make([]byte, 8192), 0o600), open(os.O_RDWR)); err != nil {
			return "", err
		}
		m, err := unix.Mmap(int(o.files[name].Fd()), 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err == unix.ENODEV {
			return "", nil // without passthrough
		}
		o.maps[name] = m
		return "", err
	case "remap":
		m := o.maps[name]
		if m == nil {
			return "", nil
		}
		m[4096]++
		b := make([]byte, 1)
		if err := unix.Msync(m, unix.MS_SYNC); err != nil {
			return "", err
		}
		if _, err := f.ReadAt(b, 4096); err != nil || b[0] != m[4096] {
			return "", fmt.Errorf("reads %d, mapped %d: %w", b[0], m[4096], err)
		}
	default:
		err = errors.New("what?")
	}
	return "", err
}

func (o *operator) list(most int) (int, error) {
	names, err := o.listing.Readdirnames(most)
	for _, name := range names {
		if o.listed[name] {
			return 0, fmt.Errorf("%s is listed twice", name)
		}
		o.listed[name] = true
	}
	if err == io.EOF {
		err = nil
	}
	return len(names), err
}

// childLoop does all that changes names and files in a directory of its own, again and again, and looks at what comes of it, until
// its standard input ends.
func childLoop(args []string) error {
	dir := filepath.Join(args[0], args[1])
	if err := os.Mkdir(dir, 0o755); err != nil {
		return err
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = io.Copy(io.Discard, os.Stdin)
	}()
	rounds := 0
	for {
		select {
		case <-ended:
			fmt.Println(rounds)
			return nil
		default:
		}
		if err := loopOnce(dir, rounds, args[2] == "passthrough"); err != nil {
			return fmt.Errorf("round %d: %w", rounds, err)
		}
		rounds++
	}
}

func loopOnce(dir string, round int, passthrough bool) (err error) {
	var did string
	p := func(name string) string { return filepath.Join(dir, name) }
	check := func(what string, e error) {
		if err == nil && e != nil {
			err, did = e, what
		}
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s: %w", did, err)
		}
	}()
	f, e := os.OpenFile(p("a"), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if e != nil {
		check("create", e)
		return err
	}
	defer f.Close()
	_, e = f.WriteAt([]byte("begin;"), 0)
	check("write", e)
	a, e := os.OpenFile(p("a"), os.O_APPEND|os.O_WRONLY, 0)
	check("open to append", e)
	want := "begin;"
	for i := range 5 {
		part := fmt.Sprintf("%d.%d;", round, i)
		_, e = a.Write([]byte(part))
		check("append", e)
		want += part
	}
	check("close", a.Close())
	got, e := os.ReadFile(p("a"))
	check("read", e)
	if err == nil && string(got) != want {
		check("read", fmt.Errorf("%q, want %q", got, want))
	}
	check("lock", unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
	check("link", os.Link(p("a"), p("l")))
	check("rename", os.Rename(p("a"), p("b")))
	if _, e := os.Lstat(p("a")); !errors.Is(e, os.ErrNotExist) {
		check("stat of the old name", fmt.Errorf("it is there: %w", e))
	}
	check("symlink", os.Symlink("b", p("s")))
	check("mkdir", os.Mkdir(p("d"), 0o755))
	x, e := os.OpenFile(p("d/x"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	check("create in the directory", e)
	check("close that", x.Close())
	check("rename into the directory", os.Rename(p("b"), p("d/c")))
	check("rename over", os.Rename(p("d/x"), p("l")))
	check("setxattr", unix.Setxattr(p("d/c"), "user.round", []byte(fmt.Sprint(round)), unix.XATTR_CREATE))
	check("truncate", os.Truncate(p("d/c"), 3))
	var st unix.Stat_t
	check("fstat", unix.Fstat(int(f.Fd()), &st))
	if err == nil && (st.Nlink != 1 || st.Size != 3) {
		check("fstat", fmt.Errorf("%d links, %d bytes", st.Nlink, st.Size))
	}
	for _, name := range []string{"d/c", "l", "s"} {
		check("unlink "+name, unix.Unlink(p(name)))
	}
	if passthrough { // without, the file is gone with its daemon
		b := make([]byte, 10)
		n, e := f.ReadAt(b, 0)
		if e == io.EOF {
			e = nil
		}
		check("read of the removed file", e)
		if err == nil && string(b[:n]) != "beg" {
			check("read of the removed file", fmt.Errorf("%q", b[:n]))
		}
	}
	check("rmdir", unix.Rmdir(p("d")))
	left, e := os.ReadDir(dir)
	check("list", e)
	if err == nil && len(left) > 0 {
		check("list", fmt.Errorf("%v is left", left))
	}
	return err
}

// Handed over, no operation is done twice: without the rules for requests that come again, no client gets a wrong
// answer either.
func TestHandOverDoesNothingTwice(t *testing.T) {
	k := newKeptMount(t, daemonOptions{Twice: true})
	k.client("op", k.point).want("create first", "ok")
	var clients []*client
	for i := range 3 {
		clients = append(clients, k.client("loop", k.point, fmt.Sprint("client", i), "passthrough"))
	}
	hand := 20
	if os.Getenv("KV3FS_SOAK") != "" {
		hand = 100
	}
	for range hand {
		if err := k.daemon.Process.Signal(syscall.SIGUSR1); err != nil {
			t.Fatal(err)
		}
		if said := hear(t, k.lines); !strings.HasPrefix(said, "gated") {
			t.Fatal(said)
		}
		k.restart()
	}
	endLoops(t, clients)
}

// endLoops ends clients that must have got no wrong answer.
func endLoops(t *testing.T, clients []*client) (rounds int) {
	t.Helper()
	for _, c := range clients {
		_ = c.in.Close()
		said := c.hear()
		if err := c.cmd.Wait(); err != nil {
			t.Errorf("a client: %s", said)
		}
		n := 0
		_, _ = fmt.Sscan(said, &n)
		rounds += n
	}
	return rounds
}

// What a client has open stays what it is, although the successor learns of other files first: numbers of nodes are never used
// twice.
func TestSuccessorConfusesNoFiles(t *testing.T) {
	k := newKeptMount(t, daemonOptions{Passthrough: PassthroughOff})
	c := k.client("op", k.point)
	for _, line := range []string{"create a", "write a AAAA", "create b", "write b BBBB", "close b"} {
		c.want(line, "ok")
	}
	k.restart()
	for _, line := range []string{"create c", "open b", "fchmod a"} {
		c.want(line, "ok")
	}
	for file, want := range map[string]string{"a": "AAAA", "b": "BBBB", "c": ""} {
		if got := c.ask("readall " + file); got != want && !(want == "" && got == "ok") {
			t.Errorf("%s: %s", file, got)
		}
	}
	for file, want := range map[string]os.FileMode{"a": 0o640, "b": 0o600, "c": 0o600} {
		if info, err := os.Stat(filepath.Join(k.data, file)); err != nil || info.Mode().Perm() != want {
			t.Errorf("%s: %v, %v", file, info.Mode(), err)
		}
	}
	if err := c.end(); err != nil {
		t.Error(err)
	}
}

// A successor that is not to serve what the mount was, or does not know what is open, takes nothing over: its clients are cut off,
// nobody hangs, and there is a new mount.
func TestSuccessorRefuses(t *testing.T) {
	for name, change := range map[string]func(k *keptMount) error{
		"cluster":     func(k *keptMount) error { k.o.Cluster = "other"; return nil },
		"block size":  func(k *keptMount) error { k.o.Block = 1 << 21; return nil },
		"passthrough": func(k *keptMount) error { k.o.Passthrough = PassthroughAuto; return nil },
		"no record":   func(k *keptMount) error { return os.Remove(filepath.Join(k.state, recordFile)) },
		"nodes cut":   func(k *keptMount) error { return damage(filepath.Join(k.state, "nodes")) },
		"handles":     func(k *keptMount) error { return damage(filepath.Join(k.state, handlesFile)) },
		"all":         func(k *keptMount) error { return os.RemoveAll(k.state) },
		"unmounted":   func(k *keptMount) error { return unix.Unmount(k.point, unix.MNT_DETACH) },
	} {
		t.Run(name, func(t *testing.T) {
			k := newKeptMount(t, daemonOptions{Passthrough: PassthroughOff})
			c := k.client("op", k.point)
			for _, line := range []string{"create f", "write f before"} {
				c.want(line, "ok")
			}
			k.kill()
			if err := change(k); err != nil {
				t.Fatal(err)
			}
			if said := k.start(); said != "new" {
				t.Fatalf("the successor says %q", said)
			}
			if got := c.ask("read f 6"); !strings.Contains(got, "not connected") && !strings.Contains(got, "connection abort") {
				t.Errorf("read of a file of the mount before: %s", got)
			}
			again := k.client("op", k.point)
			again.want("readall f", "before")
			k.restart()
			again.want("readall f", "before")
			if err := errors.Join(c.end(), again.end()); err != nil {
				t.Error(err)
			}
		})
	}
}

// damage changes a byte in the middle of a file.
func damage(file string) error {
	b, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	b[len(b)/2] ^= 0x40
	return os.WriteFile(file, b, 0o600)
}

// Under kill -9 of the daemon every 50 to 100 ms, no client of the mount gets a wrong answer or a wrong byte.
func TestKilledUnderLoad(t *testing.T) {
	kills := 10
	if os.Getenv("KV3FS_SOAK") != "" {
		kills = 300
	}
	for _, mode := range []Passthrough{PassthroughAuto, PassthroughOff} {
		name := map[Passthrough]string{PassthroughAuto: "passthrough", PassthroughOff: "none"}[mode]
		t.Run(name, func(t *testing.T) {
			k := newKeptMount(t, daemonOptions{Passthrough: mode})
			c := k.client("op", k.point) // one poll, after which the kernel asks for no more
			c.want("create first", "ok")
			var clients []*client
			for i := range 3 {
				clients = append(clients, k.client("loop", k.point, fmt.Sprint("client", i), name))
			}
			for range kills {
				pause := 50*time.Millisecond + rand.N(50*time.Millisecond)
				time.Sleep(pause) // the interval of the kills is what is tested
				k.restart()
			}
			rounds := endLoops(t, clients)
			t.Logf("%d kills, %d rounds", kills, rounds)
			if n, err := waitingOf(k.device); err != nil || n != 0 {
				t.Errorf("%d requests are not answered: %v", n, err)
			}
		})
	}
}

// waitingOf returns how many requests of a device's connection are not answered. What ends in the background is awaited.
func waitingOf(device *os.File) (n int64, err error) {
	minor, ok := connectionOf(int(device.Fd()))
	if !ok {
		return 0, nil
	}
	m := &Mount{minor: minor}
	for range 500 {
		if n, err = m.waiting(); err != nil || n == 0 {
			return n, err
		}
		time.Sleep(10 * time.Millisecond)
	}
	return n, err
}
