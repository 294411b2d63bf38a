package shm

import (
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"syscall"

	"golang.org/x/sys/unix"
)

// Semaphores in a Dir that is not this process's own but that of processes in another mount namespace. It is named by
// a descriptor of the directory, which stays open for as long as the semaphore does, and was found to be of a tmpfs.
// What is mounted on names there may be a file system that hangs, and is never looked at.

const within = unix.RESOLVE_BENEATH | unix.RESOLVE_NO_XDEV | unix.RESOLVE_NO_SYMLINKS | unix.RESOLVE_NO_MAGICLINKS

// openNow opens a name in the directory behind dir without waiting. All names of a tmpfs are in the kernel's cache; for others it would
// take the directory's lock, which a client can hold for as long as it likes: by a listing into memory that it makes the kernel wait for.
func openNow(dir int, name string, resolve uint64) (fd int, err error) {
	const cached, mostTries = 0x20, 100 // RESOLVE_CACHED, openat2(2): EAGAIN instead of a wait, and sometimes while mounts change
	how := unix.OpenHow{Flags: unix.O_PATH | unix.O_NOFOLLOW | unix.O_CLOEXEC, Resolve: resolve | cached}
	for range mostTries {
		if fd, err = unix.Openat2(dir, name, &how); err != unix.EAGAIN {
			return fd, err
		}
		runtime.Gosched()
	}
	return -1, syscall.ENOENT
}

// CreateSemIn is CreateSem in the directory behind dir. The object belongs to the thread's file-system user, who can
// open it at once and so can hold this call up: hold no lock that others wait for.
func CreateSemIn(dir int, name string) (*NamedSem, error) {
	path := filepath.Join(Dir, "sem."+name)
	fd, err := unix.Openat(dir, "sem."+name, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: path, Err: err}
	}
	defer unix.Close(fd)
	m, err := func() (*Mapping, error) {
		if err := unix.Ftruncate(fd, semBytes); err != nil {
			return nil, err
		}
		if err := unix.Fchmod(fd, 0o600); err != nil { // the umask may have reduced the mode
			return nil, err
		}
		m, err := Map(fd, semBytes)
		if err != nil {
			return nil, err
		}
		if err := m.InitSem(0); err != nil {
			m.Unmap()
			return nil, err
		}
		return m, nil
	}()
	if err != nil {
		_ = unix.Unlinkat(dir, "sem."+name, 0)
		return nil, &os.PathError{Op: "create", Path: path, Err: err}
	}
	return &NamedSem{Sem: m.Sem(0), m: m, name: name, dir: dir, elsewhere: true}, nil
}

// AdoptSemIn is AdoptSem in the directory behind dir.
func AdoptSemIn(dir int, name string, uid uint32) (*NamedSem, error) {
	path := filepath.Join(Dir, "sem."+name)
	at, err := openNow(dir, "sem."+name, within)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG { // opening a device has effects
		return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EPERM}
	}
	fd, err := unix.Open("/proc/self/fd/"+strconv.Itoa(at), unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	s, err := adoptSem(fd, path, name, uid)
	if err != nil {
		return nil, err
	}
	s.dir, s.elsewhere = dir, true
	return s, nil
}

// statIn looks at an object in the directory behind dir.
func statIn(dir int, name string, st *unix.Stat_t) error {
	fd, err := openNow(dir, name, within&^unix.RESOLVE_NO_SYMLINKS)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return unix.Fstat(fd, st)
}
