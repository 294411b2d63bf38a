package restarts

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
)

// workers are what clients of the mount do, a round at a time, each as a process of its own in a directory of its own. Every call
// must succeed, or fail as it would on a local disk, and every byte be right, whatever happens to the daemon.
var workers = map[string]func(dir string) (round func(n int) error, err error){
	"names":    namesWorker,
	"append":   appendWorker,
	"read":     readWorker,
	"rewrite":  rewriteWorker,
	"lock":     lockWorker,
	"map":      mapWorker,
	"in place": placeWorker,
	"bound":    rewriteWorker, // through a bind mount of its directory, as containers have
}

// namesWorker makes, renames, links and removes.
func namesWorker(dir string) (func(n int) error, error) {
	p := func(name string) string { return filepath.Join(dir, name) }
	return func(n int) error {
		d := &did{}
		content := fmt.Sprint("round ", n)
		f, err := os.OpenFile(p("a"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		d.call("create", err)
		_, err = f.WriteString(content)
		d.call("write", err)
		d.call("close", f.Close())
		_, err = os.OpenFile(p("a"), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644)
		d.fails("create again", err, unix.EEXIST)
		d.call("mkdir", os.Mkdir(p("d"), 0o755))
		d.fails("mkdir again", os.Mkdir(p("d"), 0o755), unix.EEXIST)
		d.call("rename", os.Rename(p("a"), p("d/b")))
		_, err = os.Stat(p("a"))
		d.fails("stat of the old name", err, unix.ENOENT)
		d.call("link", os.Link(p("d/b"), p("l")))
		d.call("symlink", os.Symlink("d/b", p("s")))
		b, err := os.ReadFile(p("s"))
		d.call("read", err)
		d.want("content", string(b), content)
		d.fails("rmdir of a full directory", unix.Rmdir(p("d")), unix.ENOTEMPTY)
		for _, name := range []string{"d/b", "l", "s"} {
			d.call("unlink "+name, unix.Unlink(p(name)))
		}
		d.fails("unlink again", unix.Unlink(p("l")), unix.ENOENT)
		d.call("rmdir", unix.Rmdir(p("d")))
		left, err := os.ReadDir(dir)
		d.call("list", err)
		d.want("entries", len(left), 0)
		return d.err
	}, nil
}

// did is the first that was wrong in a round.
type did struct{ err error }

func (d *did) call(what string, err error) {
	if d.err == nil && err != nil {
		d.err = fmt.Errorf("%s: %w", what, err)
	}
}

func (d *did) fails(what string, err error, as error) {
	if d.err == nil && !errors.Is(err, as) {
		d.err = fmt.Errorf("%s: %w, not %w", what, orNil(err), as)
	}
}

func orNil(err error) error {
	if err == nil {
		return errors.New("no error")
	}
	return err
}

func (d *did) want(what string, got, want any) {
	if d.err == nil && got != want {
		d.err = fmt.Errorf("%s: %v, not %v", what, got, want)
	}
}

// appendWorker appends to a file that is open for all of the time.
func appendWorker(dir string) (func(n int) error, error) {
	f, err := os.OpenFile(filepath.Join(dir, "log"), os.O_CREATE|os.O_APPEND|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	var want strings.Builder
	const most = 1 << 16
	return func(n int) error {
		d := &did{}
		line := fmt.Sprintf("line %d;", n)
		if want.Len() > most {
			d.call("truncate", f.Truncate(0))
			want.Reset()
		}
		_, err := f.WriteString(line)
		d.call("append", err)
		want.WriteString(line)
		info, err := f.Stat()
		if d.call("stat", err); err == nil {
			d.want("size", info.Size(), int64(want.Len()))
		}
		if n%16 == 0 {
			got := make([]byte, want.Len()+1)
			size, err := f.ReadAt(got, 0)
			d.fails("read to the end", err, io.EOF)
			d.want("content is as appended", string(got[:size]) == want.String(), true)
		}
		return d.err
	}, nil
}

// readWorker reads what does not change, by an open file and by a new one.
func readWorker(dir string) (func(n int) error, error) {
	path := filepath.Join(dir, "f")
	want := strings.Repeat("what was written ", 8192)
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		return nil, err
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return func(int) error {
		d := &did{}
		got := make([]byte, len(want))
		_, err := f.ReadAt(got, 0)
		d.call("read of an open file", err)
		again, err := os.ReadFile(path)
		d.call("read of a file", err)
		d.want("bytes are right", string(got) == want && string(again) == want, true)
		return d.err
	}, nil
}

// rewriteWorker replaces a file by another one, as programs do to change one at once.
func rewriteWorker(dir string) (func(n int) error, error) {
	path := filepath.Join(dir, "f")
	return func(n int) error {
		d := &did{}
		content := strings.Repeat(fmt.Sprint(n, " "), 1000)
		d.call("write", os.WriteFile(path+".new", []byte(content), 0o600))
		d.call("setxattr", unix.Setxattr(path+".new", "user.round", []byte(strconv.Itoa(n)), unix.XATTR_CREATE))
		d.call("chmod", os.Chmod(path+".new", 0o640))
		d.call("rename", os.Rename(path+".new", path))
		b, err := os.ReadFile(path)
		d.call("read", err)
		d.want("content is right", string(b) == content, true)
		value := make([]byte, 32)
		size, err := unix.Getxattr(path, "user.round", value)
		if d.call("getxattr", err); err == nil {
			d.want("attribute", string(value[:size]), strconv.Itoa(n))
		}
		return d.err
	}, nil
}

// lockWorker keeps a lock of each kind all of the time, and takes others.
func lockWorker(dir string) (func(n int) error, error) {
	open := func(name string) (*os.File, error) {
		return os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o644)
	}
	var files [4]*os.File
	for i, name := range []string{"held", "held", "taken", "taken"} {
		var err error
		if files[i], err = open(name); err != nil {
			return nil, err
		}
	}
	posix := func(f *os.File, kind int16) error {
		return unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &unix.Flock_t{Type: kind, Len: 10})
	}
	if err := errors.Join(unix.Flock(int(files[0].Fd()), unix.LOCK_EX), posix(files[0], unix.F_WRLCK)); err != nil {
		return nil, err
	}
	return func(int) error {
		d := &did{}
		d.fails("flock of what is locked", unix.Flock(int(files[1].Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
		d.fails("POSIX lock of what is locked", posix(files[1], unix.F_WRLCK), unix.EAGAIN)
		for i, f := range files[2:] {
			other := files[3-i]
			d.call("flock", unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB))
			d.fails("flock by another", unix.Flock(int(other.Fd()), unix.LOCK_EX|unix.LOCK_NB), unix.EWOULDBLOCK)
			d.call("unlock", unix.Flock(int(f.Fd()), unix.LOCK_UN))
			d.call("POSIX lock", posix(f, unix.F_WRLCK))
			d.fails("POSIX lock by another", posix(other, unix.F_RDLCK), unix.EAGAIN)
			d.call("POSIX unlock", posix(f, unix.F_UNLCK))
		}
		return d.err
	}, nil
}

// mapWorker writes by a mapping and reads by calls, and the other way about.
func mapWorker(dir string) (func(n int) error, error) {
	const pages, page = 16, 4096
	f, err := os.OpenFile(filepath.Join(dir, "mapped"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	if err := f.Truncate(pages * page); err != nil {
		return nil, err
	}
	m, err := unix.Mmap(int(f.Fd()), 0, pages*page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err == unix.ENODEV { // without passthrough
		return func(int) error { return nil }, nil
	}
	if err != nil {
		return nil, err
	}
	return func(n int) error {
		d := &did{}
		at := n % pages * page
		mine := fmt.Sprintf("mapped in round %d", n)
		copy(m[at:], mine)
		d.call("msync", unix.Msync(m, unix.MS_SYNC))
		got := make([]byte, len(mine))
		_, err := f.ReadAt(got, int64(at))
		d.call("read", err)
		d.want("what was mapped", string(got), mine)
		other := fmt.Sprintf("written in round %d", n)
		_, err = f.WriteAt([]byte(other), int64(at)+page/2)
		d.call("write", err)
		d.want("what was written", string(m[at+page/2:at+page/2+len(other)]), other)
		if n%64 == 0 { // the pages are asked for again
			d.call("madvise", unix.Madvise(m, unix.MADV_DONTNEED))
		}
		return d.err
	}, nil
}

// placeWorker works by relative names in its working directory, whose name changes.
func placeWorker(dir string) (func(n int) error, error) {
	if err := os.Mkdir(filepath.Join(dir, "0"), 0o755); err != nil {
		return nil, err
	}
	if err := os.Chdir(filepath.Join(dir, "0")); err != nil {
		return nil, err
	}
	listing, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	return func(n int) error {
		d := &did{}
		d.call("write", os.WriteFile("here", []byte{byte(n)}, 0o600))
		d.call("rename of the working directory", os.Rename(filepath.Join(dir, strconv.Itoa(n)), filepath.Join(dir, strconv.Itoa(n+1))))
		b, err := os.ReadFile("here")
		d.call("read", err)
		d.want("bytes", string(b), string([]byte{byte(n)}))
		d.call("unlink", unix.Unlink("here"))
		_, err = listing.Seek(0, io.SeekStart)
		d.call("seek", err)
		names, err := listing.Readdirnames(-1)
		d.call("list", err)
		d.want("entries", strings.Join(names, " "), strconv.Itoa(n+1))
		return d.err
	}, nil
}

const workerVariable = "KV3FS_TEST_WORKER"

// work does rounds until standard input ends. For each line there it prints one when it has done a whole round since.
func work(name, dir string) error {
	round, err := workers[name](dir)
	if err != nil {
		return err
	}
	fmt.Println("begun")
	var asked atomic.Int64
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			asked.Add(1)
		}
	}()
	told := int64(0)
	for n := 0; ; n++ {
		before := asked.Load()
		select {
		case <-ended:
			fmt.Println("ended after", n)
			return nil
		default:
		}
		if err := round(n); err != nil {
			return fmt.Errorf("round %d: %w", n, err)
		}
		for ; told < before; told++ {
			fmt.Println("round")
		}
	}
}

// crowd are a process of each kind of worker.
type crowd struct {
	t   *testing.T
	all []*worker
}

type worker struct {
	name  string
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines <-chan string
}

func workOn(t *testing.T, mount string) *crowd {
	t.Helper()
	c := &crowd{t: t}
	t.Cleanup(c.kill)
	for name := range workers {
		dir := filepath.Join(mount, "worker "+name)
		if err := os.Mkdir(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if name == "bound" {
			on := daemontest.NewDir(t)
			if err := unix.Mount(dir, on, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(on, unix.MNT_DETACH) })
			dir = on
		}
		w := &worker{name: name, cmd: exec.Command("/proc/self/exe", dir)}
		w.cmd.Env = append(os.Environ(), workerVariable+"="+name)
		w.cmd.Stderr = os.Stderr
		var err error
		if w.in, err = w.cmd.StdinPipe(); err != nil {
			t.Fatal(err)
		}
		out, err := w.cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := w.cmd.Start(); err != nil {
			t.Fatal(err)
		}
		w.lines = linesOf(out)
		c.all = append(c.all, w)
	}
	c.hear("begun")
	return c
}

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

// patience bounds what takes a moment on an idle machine.
const patience = 2 * time.Minute

// hear awaits a line that begins so from everybody.
func (c *crowd) hear(begins string) {
	c.t.Helper()
	for _, w := range c.all {
		select {
		case line := <-w.lines:
			if !strings.HasPrefix(line, begins) {
				c.t.Fatalf("a client of the mount says %q", line)
			}
			if begins == "ended" {
				c.t.Logf("%s %s rounds", w.name, line)
			}
		case <-time.After(patience):
			c.t.Fatalf("%s: a call hangs", w.name)
		}
	}
}

// awaitRounds returns when everybody has done a round that began after the call.
func (c *crowd) awaitRounds() {
	c.t.Helper()
	for _, w := range c.all {
		_, _ = io.WriteString(w.in, "\n") // one that has ended has said why
	}
	c.hear("round")
}

// end has everybody finish.
func (c *crowd) end() {
	c.t.Helper()
	for _, w := range c.all {
		_ = w.in.Close()
	}
	c.hear("ended")
	for _, w := range c.all {
		if err := w.cmd.Wait(); err != nil {
			c.t.Errorf("%s: %v", w.name, err)
		}
	}
	c.all = nil
}

// kill ends whoever is left, after a failure.
func (c *crowd) kill() {
	for _, w := range c.all {
		_ = w.cmd.Process.Kill() // one that waits for ever for a daemon ends when the mount does
	}
}
