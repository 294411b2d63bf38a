package ringserver

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// devShms finds the /dev/shm of each client: that of the process that asks. Most have the daemon's own. A client in a
// container has another one, which the daemon reaches through the root directory of that client's process, and holds
// open for as long as something of that client's needs it.
//
// A client can mount anything at its /dev/shm, so on the way there is no look at what is not in the kernel's cache,
// where a file system of the client could keep the daemon waiting; no symbolic link is followed; and only a tmpfs will do.
// What is opened in it is opened with the client's rights.
type devShms struct {
	own   root
	known bool // own is known, and the kernel can open paths without waiting

	mu    sync.Mutex
	all   map[devShmID]*devShm
	ended func(*devShm) // called when nothing needs one any more, before it is closed
}

// devShm is a /dev/shm that is not the daemon's own. A nil one is the daemon's own.
type devShm struct {
	id  devShmID
	dir int // its directory, opened with O_PATH
	of  *devShms

	uses    int                      // guarded by devShms.mu
	readers map[keptProcess]struct{} // processes that have read a submit link, each of which is a use. Guarded likewise.
	sweep   sync.Once                // of what killed daemons have left
}

// devShmID identifies a directory of a tmpfs, as it is seen through a mount: the same directory belongs to another user
// where ids are mapped.
type devShmID struct {
	Dev, Ino uint64
	UID      uint32
}

// root identifies the root directory of a process. Each mount namespace has mounts of its own, so processes with the same one are
// in one namespace and see the same /dev/shm.
type root struct{ dev, ino, mount uint64 }

// Why the daemon cannot tell which /dev/shm a client has. It then takes its own for the client's.
var (
	errUnseenProcess = errors.New("the daemon cannot see the client's process, so it has looked in its own " + shm.Dir)
	errNoRight       = errors.New("the daemon may not look at the client's " + shm.Dir + ", so it has looked in its own")
	errOldKernel     = errors.New("this kernel cannot open the client's " + shm.Dir + " without waiting, so the daemon has looked in its own")
)

const resolveCached = 0x20 // RESOLVE_CACHED, openat2(2): EAGAIN where a file system would have to be asked

// mostTries bounds the tries to open a path that is in the kernel's cache, while mounts change.
const mostTries = 100

func newDevShms(ended func(*devShm)) *devShms {
	d := &devShms{all: map[devShmID]*devShm{}, ended: ended}
	fd, err := unix.Openat2(unix.AT_FDCWD, "/", &unix.OpenHow{Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: resolveCached})
	if err == nil {
		unix.Close(fd)
	}
	if err != unix.EINVAL && err != unix.ENOSYS { // Linux 5.12
		d.own, err = rootOf("/")
		d.known = err == nil
	}
	return d
}

// rootOf identifies the root directory at a path, and does not wait for its file system.
func rootOf(path string) (root, error) {
	var st unix.Statx_t
	err := unix.Statx(unix.AT_FDCWD, path, unix.AT_STATX_DONT_SYNC|unix.AT_NO_AUTOMOUNT, unix.STATX_INO|unix.STATX_MNT_ID, &st)
	if err == nil && st.Mask&unix.STATX_MNT_ID == 0 {
		err = unix.ENOSYS
	}
	return root{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, st.Mnt_id}, err
}

func processDir(pid uint32) string { return "/proc/" + strconv.FormatUint(uint64(pid), 10) }

// find returns the /dev/shm of c's process, which waits for the answer to a request meanwhile and so cannot be another one. The caller
// releases it. doubt says why the daemon's own is only assumed to be it; nil: it is known. An err is the client's.
func (d *devShms) find(c cred.Caller) (x *devShm, doubt, err error) {
	if !d.known {
		return nil, errOldKernel, nil
	}
	if c.PID == 0 {
		return nil, errUnseenProcess, nil
	}
	switch at, err := rootOf(processDir(c.PID) + "/root"); {
	case err == nil && at == d.own:
		return nil, nil, nil
	case err == unix.EACCES || err == unix.EPERM:
		return nil, errNoRight, nil
	case err != nil:
		return nil, errUnseenProcess, nil
	}
	x, err = d.through(c.PID)
	if err == errNoRight {
		return nil, err, nil
	}
	return x, nil, err
}

// through returns the /dev/shm of a process in another mount namespace, or nil if it is the daemon's own after all.
func (d *devShms) through(pid uint32) (*devShm, error) {
	proc, start := processDir(pid), startOf(int(pid))
	at, err := unix.Open(proc+"/root", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err == unix.EACCES || err == unix.EPERM {
		return nil, errNoRight
	} else if err != nil {
		return nil, noShm(fmt.Errorf("its root directory: %w", err))
	}
	defer unix.Close(at)
	dir, err := openCached(at, strings.TrimPrefix(shm.Dir, "/"))
	if err != nil {
		return nil, noShm(err)
	}
	keep := false
	defer func() {
		if !keep {
			unix.Close(dir)
		}
	}()
	var st unix.Statx_t
	if err := unix.Statx(dir, "", unix.AT_EMPTY_PATH|unix.AT_STATX_DONT_SYNC, unix.STATX_INO|unix.STATX_UID|unix.STATX_MNT_ID, &st); err != nil {
		return nil, noShm(err)
	}
	id := devShmID{unix.Mkdev(st.Dev_major, st.Dev_minor), st.Ino, st.Uid}
	if own, err := ownID(); err == nil && own == id {
		return nil, nil
	}
	x := d.hold(id)
	if x == nil {
		if err := isTmpfs(proc, st.Mnt_id); err != nil {
			return nil, noShm(err)
		}
		x, keep = d.add(id, dir)
	}
	if start == 0 || startOf(int(pid)) != start {
		x.release()
		return nil, syscall.ESRCH // another process has the number by now
	}
	return x, nil
}

// openCached opens a directory below at whose path leads over nothing that has to be asked for from a file system.
func openCached(at int, path string) (fd int, err error) {
	how := unix.OpenHow{
		Flags:   unix.O_PATH | unix.O_DIRECTORY | unix.O_CLOEXEC,
		Resolve: unix.RESOLVE_BENEATH | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS | resolveCached,
	}
	for range mostTries {
		if fd, err = unix.Openat2(at, path, &how); err != unix.EAGAIN {
			break
		}
		runtime.Gosched() // a mount elsewhere may have come in between
	}
	switch err {
	case unix.EAGAIN, unix.ENOENT:
		err = errors.New("it is on a file system that may not answer, or is not there")
	case unix.ELOOP:
		err = errors.New("there is a symbolic link on the way")
	}
	return fd, err
}

// ownID identifies the daemon's own /dev/shm.
func ownID() (devShmID, error) {
	var st unix.Stat_t
	err := unix.Stat(shm.Dir, &st)
	return devShmID{st.Dev, st.Ino, st.Uid}, err
}

// mostMountinfo bounds how much is read of the list of a process's mounts.
const mostMountinfo = 16 << 20

// isTmpfs returns an error unless a mount of a process is of a tmpfs. To ask the mount itself could take for ever.
func isTmpfs(proc string, mount uint64) error {
	f, err := os.Open(proc + "/mountinfo")
	if err != nil {
		return err
	}
	defer f.Close()
	begins := strconv.FormatUint(mount, 10) + " "
	lines := bufio.NewScanner(io.LimitReader(f, mostMountinfo))
	lines.Buffer(nil, 64<<10)
	for lines.Scan() {
		if !strings.HasPrefix(lines.Text(), begins) {
			continue
		}
		_, after, _ := strings.Cut(lines.Text(), " - ")
		if kind, _, _ := strings.Cut(after, " "); kind != "tmpfs" {
			return fmt.Errorf("it is of type %s, not tmpfs", kind)
		}
		return nil
	}
	return errors.New("it is none of the mounts of its process")
}

// noShm is a client's error: the daemon does not use what it has at /dev/shm.
func noShm(err error) error {
	return &refusedShm{"the client's own " + shm.Dir + " cannot be used: " + err.Error(), "a tmpfs at " + shm.Dir + " of the client's mount namespace, with no symbolic link on the way", syscall.EACCES}
}

// refusedShm says why objects of a client cannot be reached, and what to do.
type refusedShm struct {
	text, cure string
	errno      syscall.Errno
}

func (e *refusedShm) Error() string { return e.text }
func (e *refusedShm) Unwrap() error { return e.errno }

// doubted returns the error of a registration whose object was not found in the daemon's own /dev/shm, which may not be the client's.
func doubted(doubt error) error {
	cure := "the host's PID namespace for the daemon (Kubernetes: hostPID: true; docker: --pid=host), or one " + shm.Dir + " for both"
	switch doubt {
	case errNoRight:
		cure = "the capability CAP_SYS_PTRACE for the daemon (Kubernetes: privileged; docker: --cap-add SYS_PTRACE), or one " + shm.Dir + " for both"
	case errOldKernel:
		cure = "Linux 5.12 or later, or one " + shm.Dir + " for both (docker: --ipc=host; Kubernetes: hostIPC: true)"
	}
	return &refusedShm{doubt.Error() + ", where there is no such object", cure, syscall.EACCES}
}

// add returns the one with that id, made of dir if need be: then kept is true. The caller releases it.
func (d *devShms) add(id devShmID, dir int) (x *devShm, kept bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if x = d.all[id]; x == nil {
		x, kept = &devShm{id: id, dir: dir, of: d, readers: map[keptProcess]struct{}{}}, true
		d.all[id] = x
	}
	x.uses++
	return x, kept
}

// hold returns the one with that id, which the caller releases, or nil.
func (d *devShms) hold(id devShmID) *devShm {
	d.mu.Lock()
	defer d.mu.Unlock()
	x := d.all[id]
	if x != nil {
		x.uses++
	}
	return x
}

// holdAll holds all that there are.
func (d *devShms) holdAll() (all []*devShm) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, x := range d.all {
		x.uses++
		all = append(all, x)
	}
	return all
}

// hold keeps x until one more release.
func (x *devShm) hold() *devShm {
	if x != nil {
		x.of.mu.Lock()
		x.uses++
		x.of.mu.Unlock()
	}
	return x
}

func (x *devShm) addReader(k keptProcess) {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	x.readers[k] = struct{}{}
}

func (x *devShm) removeReader(k keptProcess) {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	delete(x.readers, k)
}

// mostKeptReaders bounds the processes that are noted for a successor, which needs one.
const mostKeptReaders = 64

// keptReaders returns processes that have read a submit link.
func (x *devShm) keptReaders() (all []keptProcess) {
	x.of.mu.Lock()
	defer x.of.mu.Unlock()
	for k := range x.readers {
		if all = append(all, k); len(all) == mostKeptReaders {
			break
		}
	}
	return all
}

// release ends a use of x. The last one closes it.
func (x *devShm) release() {
	if x == nil {
		return
	}
	d := x.of
	d.mu.Lock()
	x.uses--
	invariants.Check(x.uses >= 0, "a /dev/shm: released more often than held")
	last := x.uses == 0
	if last {
		delete(d.all, x.id)
	}
	d.mu.Unlock()
	if last {
		d.ended(x)
		unix.Close(x.dir)
	}
}

// directory opens it, for calls that take no O_PATH descriptor.
func (x *devShm) directory() (fd int, err error) {
	if x == nil {
		return unix.Open(shm.Dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return unix.Openat(x.dir, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
}

// path opens it without the right to read it.
func (x *devShm) path() (fd int, err error) {
	if x == nil {
		return unix.Open(shm.Dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	}
	return unix.FcntlInt(uintptr(x.dir), unix.F_DUPFD_CLOEXEC, 0)
}
