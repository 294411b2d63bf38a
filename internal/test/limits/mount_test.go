package limits

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/hanwen/go-fuse/v2/fs"
	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/test/daemontest"
	"github.com/kv3fs/kv3fs/internal/test/hostile"
)

func mountPrograms() map[string]hostile.Program {
	return map[string]hostile.Program{"use": use, "open-all": openAll, "stat-all": statAll, "remove": removeFile, "order-move": orderMove,
		"order-removal": orderRemoval, "order-own-removal": orderOwnRemoval}
}

// use does what every client of the mount must be able to do at any time, in a directory
// that it may write.
func use(s *hostile.Self) error {
	var dir string
	if err := s.Args(&dir); err != nil {
		return err
	}
	at := filepath.Join(dir, "used-by-"+strconv.Itoa(os.Getuid()))
	if err := os.Mkdir(at, 0o755); err != nil {
		return err
	}
	from, to := filepath.Join(at, "a"), filepath.Join(at, "b")
	if err := errors.Join(os.WriteFile(from, []byte("text"), 0o600), os.Rename(from, to)); err != nil {
		return err
	}
	if text, err := os.ReadFile(to); err != nil || string(text) != "text" {
		return fmt.Errorf("read %q, %v", text, err)
	}
	if names, err := os.ReadDir(at); err != nil || len(names) != 1 {
		return fmt.Errorf("%d names, %v", len(names), err)
	}
	return os.RemoveAll(at)
}

// othersUse has root and a user of its own use the mount.
func othersUse(t *testing.T, d *daemontest.Daemon, when string) {
	t.Helper()
	for _, u := range []hostile.User{{}, hostile.NewUser(t)} {
		p := hostile.Start(t, u, "use", d.Mount)
		if err := p.Stop(); err != nil {
			t.Fatalf("%s: %v", when, err)
		}
	}
}

// openAll opens a file until it may not, reports how often it did, and keeps them all.
func openAll(s *hostile.Self) error {
	var path string
	if err := s.Args(&path); err != nil {
		return err
	}
	for n := 0; ; n++ {
		if _, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0); err != nil {
			if err := s.Report([]int{n, int(err.(syscall.Errno))}); err != nil {
				return err
			}
			<-s.Stopped()
			return nil
		}
	}
}

// A user who opens all the files that it may gets EMFILE, and nobody else does. When its
// processes have been killed it may open files again.
func TestOpenFiles(t *testing.T) {
	const files = 400 // of all users
	d := serve(t, "--limit-files", strconv.Itoa(files))
	u := hostile.NewUser(t)
	path := newFile(t, d, u, 10, 1)
	var hogs []*hostile.Process
	total := 0
	for range 3 {
		var got []int
		p := hostile.Start(t, u, "open-all", path)
		p.Await(&got)
		hogs = append(hogs, p)
		total += got[0]
		if syscall.Errno(got[1]) != unix.EMFILE {
			t.Errorf("refused with %v, want EMFILE", syscall.Errno(got[1]))
		}
	}
	if most := files / 4; total > most || total < most*3/4 {
		t.Errorf("one user opened %d files, may open %d", total, most)
	}
	othersUse(t, d, "while a user has all its files open")
	for _, p := range hogs {
		p.Kill()
	}
	// The files of killed processes are closed in time.
	for end := time.Now().Add(hostile.Patience); ; {
		var got []int
		p := hostile.Start(t, u, "open-all", path)
		p.Await(&got)
		p.Kill()
		if got[0] >= total*3/4 {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("the user may open %d files after its processes were killed, %d before", got[0], total)
		}
	}
}

// untilUsable waits until a user can use the mount.
func untilUsable(t *testing.T, d *daemontest.Daemon, u hostile.User) {
	t.Helper()
	for end := time.Now().Add(hostile.Patience); ; {
		err := hostile.Start(t, u, "use", d.Mount).Stop()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
}

// hungDir is a file system below a daemon's data directory where no lookup and no removal
// ends before release, except lookups of the file "known".
type hungDir struct {
	fs.Inode
	release chan struct{}
	hanging chan struct{} // gets a value for a call that hangs
}

func (h *hungDir) Getattr(_ context.Context, _ fs.FileHandle, out *fuse.AttrOut) syscall.Errno {
	out.Mode = unix.S_IFDIR | 0o777
	return 0
}

func (h *hungDir) Lookup(ctx context.Context, name string, out *fuse.EntryOut) (*fs.Inode, syscall.Errno) {
	if name == "known" {
		out.Mode = unix.S_IFREG | 0o666
		return h.NewInode(ctx, &fs.Inode{}, fs.StableAttr{Ino: 2}), 0
	}
	h.hang()
	return nil, unix.ENOENT
}

func (h *hungDir) Unlink(context.Context, string) syscall.Errno {
	h.hang()
	return 0
}

func (h *hungDir) hang() {
	select {
	case h.hanging <- struct{}{}:
	default:
	}
	<-h.release
}

// serveHung starts a daemon with such a directory, hung. All its lookups end with release,
// or with the test.
func serveHung(t *testing.T, flags ...string) (d *daemontest.Daemon, h *hungDir, release func()) {
	t.Helper()
	if testing.Short() {
		t.Skip("hostile users need a daemon of their own")
	}
	daemontest.NeedRoot(t)
	data := filepath.Join(daemontest.NewDir(t), "data")
	at := filepath.Join(data, "hung")
	if err := errors.Join(os.MkdirAll(at, 0o777), os.Chmod(data, 0o777)); err != nil {
		t.Fatal(err)
	}
	h = &hungDir{release: make(chan struct{}), hanging: make(chan struct{}, 1)}
	server, err := fs.Mount(at, h, &fs.Options{
		// go-fuse keeps the pipes that it splices through until the process ends.
		MountOptions:   fuse.MountOptions{DirectMount: true, AllowOther: true, DisableSplice: true},
		RootStableAttr: &fs.StableAttr{Ino: 1, Mode: unix.S_IFDIR | 0o777},
	})
	if err != nil {
		daemontest.NotTested(t, "the hung directory needs a FUSE mount: "+err.Error())
	}
	release = sync.OnceFunc(func() { close(h.release) })
	t.Cleanup(func() {
		release()
		if err := unix.Unmount(at, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
		server.Wait()
	})
	d = daemontest.ServeWith(t, daemontest.Options{Data: data, Flags: append([]string{"--drain", "1s"}, flags...)})
	t.Cleanup(release) // before the daemon must end
	return d, h, release
}

// await waits until a call hangs.
func (h *hungDir) await(t *testing.T) {
	t.Helper()
	select {
	case <-h.hanging:
	case <-time.After(hostile.Patience):
		t.Fatal("no call reaches the hung directory")
	}
}

// statCalls asks for Count calls of stat at a time, of different names, and expects that
// this many are refused.
type statCalls struct {
	Dir            string
	Count, Refused int
}

// statAll reports when that many were refused with EAGAIN. The others must find nothing in
// the end.
func statAll(s *hostile.Self) error {
	var a statCalls
	if err := s.Args(&a); err != nil {
		return err
	}
	ended := make(chan error, a.Count)
	for i := range a.Count {
		go func() {
			var st unix.Stat_t
			ended <- unix.Stat(filepath.Join(a.Dir, strconv.Itoa(i)), &st)
		}()
	}
	refused := 0
	for range a.Count {
		err := <-ended
		switch {
		case err == unix.EAGAIN:
			if refused++; refused == a.Refused {
				if err := s.Report(refused); err != nil {
					return err
				}
			}
		case err != unix.ENOENT || refused < a.Refused:
			return fmt.Errorf("after %d were refused: %w", refused, err)
		}
	}
	return nil
}

// threads returns the number of threads of a process.
func threads(t *testing.T, pid int) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "\nThreads:\t")
	line, _, _ := strings.Cut(after, "\n")
	n, err := strconv.Atoi(line)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Requests that hang with a part of the data directory take no more than their user's share
// of the daemon's threads; others are served meanwhile, and that user again afterwards.
func TestStuckRequests(t *testing.T) {
	const requests, calls = 400, 800
	d, _, release := serveHung(t, "--limit-requests", strconv.Itoa(requests))
	before := threads(t, d.PID())
	u := hostile.NewUser(t)
	// All but the user's share are refused at once.
	a := statCalls{Dir: filepath.Join(d.Mount, "hung"), Count: calls, Refused: calls - requests/4}
	p := hostile.Start(t, u, "stat-all", a)
	var refused int
	p.Await(&refused)
	// The others' requests and the runtime's own threads come on top.
	if now := threads(t, d.PID()); now > before+requests/4+100 {
		t.Errorf("the daemon has %d threads, had %d before", now, before)
	}
	othersUse(t, d, "while a user's requests hang")
	release()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
	untilUsable(t, d, u)
}

func removeFile(s *hostile.Self) error {
	var path string
	if err := s.Args(&path); err != nil {
		return err
	}
	return os.Remove(path)
}

// orderMove moves a file of its own as a link's target says.
func orderMove(s *hostile.Self) error {
	var mount string
	if err := s.Args(&mount); err != nil {
		return err
	}
	own := filepath.Join(mount, "mover")
	file := filepath.Join(own, "file")
	return errors.Join(os.Mkdir(own, 0o755), os.WriteFile(file, nil, 0o600), os.Symlink("mv:"+file, filepath.Join(own, "moved")))
}

// A removal that hangs with a part of the data directory does not keep others, or its own
// user, from moving and removing what is elsewhere.
func TestStuckRemoval(t *testing.T) {
	d, h, release := serveHung(t)
	u := hostile.NewUser(t)
	p := hostile.Start(t, u, "remove", filepath.Join(d.Mount, "hung", "known"))
	h.await(t)
	mover := hostile.Start(t, u, "order-move", d.Mount)
	othersUse(t, d, "while a removal hangs")
	if err := mover.Stop(); err != nil {
		t.Error(err)
	}
	othersUse(t, d, "while a removal hangs, after a move")
	release()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}

// removal is an order to remove Path, given on a mount.
type removal struct{ Mount, Path string }

func (r removal) order() error {
	return os.Symlink(r.Path, filepath.Join(r.Mount, "3fs-virt/rm-rf", strconv.Itoa(os.Getpid())))
}

func orderRemoval(s *hostile.Self) error {
	var r removal
	if err := s.Args(&r); err != nil {
		return err
	}
	if err := r.order(); !errors.Is(err, unix.ENOENT) {
		return fmt.Errorf("removal of what is not there: %w", err)
	}
	return nil
}

// orderOwnRemoval orders to remove a tree of its own.
func orderOwnRemoval(s *hostile.Self) error {
	var mount string
	if err := s.Args(&mount); err != nil {
		return err
	}
	r := removal{Mount: mount, Path: filepath.Join(mount, "tree-of-"+strconv.Itoa(os.Getuid()))}
	if err := errors.Join(os.MkdirAll(filepath.Join(r.Path, "a/b"), 0o755), r.order()); err != nil {
		return err
	}
	if _, err := os.Stat(r.Path); !os.IsNotExist(err) {
		return fmt.Errorf("after the removal: %w", err)
	}
	return nil
}

// While the removal that one user has ordered hangs, and with it that user's directory
// rm-rf, others order removals and register rings.
func TestStuckOrder(t *testing.T) {
	d, h, release := serveHung(t)
	p := hostile.Start(t, hostile.NewUser(t), "order-removal", removal{d.Mount, filepath.Join(d.Mount, "hung/missing")})
	h.await(t)
	u := hostile.NewUser(t)
	hostile.Run(t, u, "order-own-removal", d.Mount, nil)
	read(t, d, u, 3, hostile.Patience)
	othersUse(t, d, "while an order hangs")
	release()
	if err := p.Stop(); err != nil {
		t.Error(err)
	}
}
