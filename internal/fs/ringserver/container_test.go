package ringserver

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// container is a process in a mount namespace of its own, as an engine in a container is. The test does to objects
// and rings what that process would do.
type container struct {
	t    testing.TB
	cmd  *exec.Cmd
	in   interface{ Close() error }
	send func(steps string) string
	keep bool // names of objects, which clients remove once they are registered
	cred.Caller
}

const containerEnv = "KV3FS_RINGSERVER_CONTAINER"

// newContainer starts one as a user, who is root in a user namespace of its own unless it is root itself, and takes steps in it.
func newContainer(t testing.TB, uid uint32, steps string) *container {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("NOT TESTED: a mount namespace needs root")
	}
	c := &container{t: t, cmd: exec.Command("/proc/self/exe"), Caller: cred.Caller{UID: uid, GID: uid}}
	c.cmd.Env = append(os.Environ(), containerEnv+"="+steps)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if uid != 0 {
		if err := exec.Command("unshare", "--user", "true").Run(); err != nil {
			t.Skip("NOT TESTED: there are no user namespaces here")
		}
		ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: int(uid), Size: 1}}
		c.cmd.SysProcAttr.Cloneflags, c.cmd.SysProcAttr.Unshareflags = unix.CLONE_NEWUSER|unix.CLONE_NEWNS, 0
		c.cmd.SysProcAttr.Credential = &syscall.Credential{NoSetGroups: true} // root there
		c.cmd.SysProcAttr.UidMappings, c.cmd.SysProcAttr.GidMappings = ids, ids
	}
	in, err := c.cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stderr = os.Stderr
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.end)
	c.in, c.PID = in, uint32(c.cmd.Process.Pid)
	answers := bufio.NewReader(out)
	answer := func() string {
		line, err := answers.ReadString('\n')
		if err != nil {
			t.Fatalf("the container has ended: %v", err)
		}
		return strings.TrimSuffix(line, "\n")
	}
	if line := answer(); line != "ready" {
		t.Fatalf("a container with %s: %s", steps, line)
	}
	c.send = func(steps string) string {
		if _, err := fmt.Fprintln(in, steps); err != nil {
			t.Fatal(err)
		}
		return answer()
	}
	return c
}

// end ends the process and waits for it.
func (c *container) end() {
	_ = c.cmd.Process.Kill() // it may have ended
	_ = c.cmd.Wait()         // likewise
}

// path is where the test finds a path of the container.
func (c *container) path(path string) string { return processDir(c.PID) + "/root" + path }

// contained is the process: it takes steps, says that it is ready, and takes more steps as it is told.
func contained(steps []string) error {
	runtime.LockOSThread() // the main thread: where a step changes the namespace, it is this thread's
	if err := take(steps); err != nil {
		return err
	}
	fmt.Println("ready")
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := take(strings.Fields(lines.Text())); err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Println("done")
	}
	return nil
}

func take(steps []string) error {
	for _, step := range steps {
		name, arg, _ := strings.Cut(step, "=")
		if err := takeStep(name, arg); err != nil {
			return fmt.Errorf("%s: %w", step, err)
		}
	}
	return nil
}

func takeStep(name, arg string) error {
	switch name {
	case "private": // what is mounted from here on is seen here only
		return unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, "")
	case "tmpfs":
		return unix.Mount("tmpfs", arg, "tmpfs", 0, "mode=1777,size=16m")
	case "readonly":
		return unix.Mount("", arg, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, "")
	case "ramfs":
		return unix.Mount("ramfs", arg, "ramfs", 0, "")
	case "fuse": // a file system that never answers
		fd, err := unix.Open("/dev/fuse", unix.O_RDWR, 0)
		if err != nil {
			return err
		}
		return unix.Mount("hung", arg, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0,allow_other", fd))
	case "bind":
		from, to, _ := strings.Cut(arg, ":")
		return unix.Mount(from, to, "", unix.MS_BIND, "")
	case "mkdir":
		return os.Mkdir(arg, 0o755)
	case "link":
		to, from, _ := strings.Cut(arg, ":")
		return os.Symlink(to, from)
	case "unmount":
		return unix.Unmount(arg, unix.MNT_DETACH)
	case "unshare":
		return unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS)
	case "chroot":
		return unix.Chroot(arg)
	case "touch":
		return os.WriteFile(arg, make([]byte, 32), 0o600)
	case "fifo":
		return unix.Mkfifo(arg, 0o666)
	case "held": // a file that stays open
		f, err := os.OpenFile(arg, os.O_RDWR|os.O_CREATE, 0o600)
		held = append(held, f)
		return err
	case "list": // another process lists /dev/shm into memory of a file
		child := exec.Command("/proc/self/exe")
		child.Env = append(os.Environ(), containerEnv+"=listing="+arg)
		return child.Start()
	case "listing":
		f, err := os.Open(arg)
		if err != nil {
			return err
		}
		b, err := unix.Mmap(int(f.Fd()), 0, 1<<16, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE)
		if err != nil {
			return err
		}
		dir, err := os.Open(shm.Dir)
		if err != nil {
			return err
		}
		_, err = unix.Getdents(int(dir.Fd()), b)
		return err
	case "exec":
		if err := os.Setenv(containerEnv, "private"); err != nil {
			return err
		}
		return syscall.Exec("/proc/self/exe", os.Args, os.Environ())
	}
	return fmt.Errorf("no such step")
}

var held []*os.File // of a container, so that none is collected

// object makes an object of a user in the container and registers it as uuid+suffix.
func (c *container) object(s *Server, sizeBytes int64, suffix string) (m *shm.Mapping, name string, err error) {
	c.t.Helper()
	file := "hf3fs-iov-" + wire.NewUUID().String()
	at := c.path(shm.Dir) + "/" + file
	err = cred.CreateAs(c.Caller, func() error {
		f, err := os.OpenFile(at, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := f.Truncate(sizeBytes); err != nil {
			return err
		}
		m, err = shm.Map(int(f.Fd()), sizeBytes)
		return err
	})
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(m.Unmap)
	if !c.keep {
		defer os.Remove(at)
	}
	name = wire.NewUUID().String() + suffix
	_, err = s.Register(c.Caller, name, shm.Dir+"/"+file)
	return m, name, err
}

// sem opens a submit semaphore as the container's process does.
func (c *container) sem(s *Server, p wire.Priority) *shm.NamedSem {
	c.t.Helper()
	path, err := s.SubmitLink(c.Caller, p)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.open(path)
}

func (c *container) open(path string) *shm.NamedSem {
	c.t.Helper()
	dir, err := unix.Open(c.path(shm.Dir), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { unix.Close(dir) })
	sem, err := shm.AdoptSemIn(dir, strings.TrimPrefix(path, shm.Dir+"/sem."), c.UID)
	if err != nil {
		c.t.Fatal(err)
	}
	c.t.Cleanup(func() { sem.Close(false) })
	return sem
}

// posts returns the value of a semaphore.
func (c *container) posts(sem *shm.NamedSem) uint32 {
	c.t.Helper()
	b, err := os.ReadFile(c.path(sem.Path()))
	if err != nil {
		c.t.Fatal(err)
	}
	return binary.LittleEndian.Uint32(b)
}

// peer makes a ring of the container's.
func (c *container) peer(s *Server, entries int) *peer {
	c.t.Helper()
	size := wire.RingBytes(entries)
	m, name, err := c.object(s, size, ".r0.t0")
	if err != nil {
		c.t.Fatal(err)
	}
	layout, _ := wire.LayoutOf(size)
	return &peer{t: c.t, name: name, m: m, layout: layout, sem: c.sem(s, wire.Normal)}
}

// objects lists the submit semaphores in the container's /dev/shm.
func (c *container) semaphores() (names []string) {
	all, err := os.ReadDir(c.path(shm.Dir))
	if err != nil {
		c.t.Fatal(err)
	}
	for _, e := range all {
		if strings.HasPrefix(e.Name(), "sem."+SemPrefix) {
			names = append(names, e.Name())
		}
	}
	return names
}

// own is a container with a tmpfs at /dev/shm.
const own = "private tmpfs=/dev/shm"

func pidOf(n int) string { return strconv.Itoa(n) }
