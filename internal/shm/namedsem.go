package shm

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// NamedSem is a POSIX named semaphore, as sem_open creates it: a 32-byte object with
// the name sem.<name>.
type NamedSem struct {
	Sem
	m    *Mapping
	name string
	dir  int // descriptor of the directory that it is in; elsewhere only
	// elsewhere says that its directory is not this process's Dir.
	elsewhere bool
}

// CreateSem creates a named semaphore of value 0 that only user uid, and root, can open.
// EPERM: this process may not create objects of that user. ENOSPC: Dir is full.
func CreateSem(name string, uid uint32) (*NamedSem, error) {
	m, err := Create("sem."+name, semBytes, 0o600)
	if err != nil {
		return nil, err
	}
	s := &NamedSem{Sem: m.Sem(0), m: m, name: name}
	if err := s.giveTo(uid); err != nil {
		s.Close(true)
		return nil, fmt.Errorf("create semaphore %s of user %d: %w", name, uid, err)
	}
	return s, nil
}

// giveTo prepares a new semaphore for its user, who can open it only from then on.
func (s *NamedSem) giveTo(uid uint32) error {
	if err := Guard(s.Init); err != nil {
		return syscall.ENOSPC // the first access to the page had to allocate it
	}
	if err := unix.Fchmod(s.m.fd, 0o600); err != nil { // the umask may have reduced the mode
		return err
	}
	if int(uid) == os.Geteuid() {
		return nil
	}
	return unix.Fchown(s.m.fd, int(uid), -1)
}

// OpenSem opens an existing named semaphore.
func OpenSem(name string) (*NamedSem, error) {
	path := filepath.Join(Dir, "sem."+name)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	m, err := Map(fd, semBytes)
	if err != nil {
		return nil, &os.PathError{Op: "map", Path: path, Err: err}
	}
	return &NamedSem{Sem: m.Sem(0), m: m, name: name}, nil
}

// AdoptSem opens a semaphore that an earlier process has created for user uid. The object under
// its name may be another one by now: EPERM unless it is one of that user's. It waits for nobody.
func AdoptSem(name string, uid uint32) (*NamedSem, error) {
	path := filepath.Join(Dir, "sem."+name)
	if filepath.Dir(path) != Dir {
		return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EINVAL}
	}
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: path, Err: err}
	}
	defer unix.Close(fd)
	return adoptSem(fd, path, name, uid)
}

// adoptSem is AdoptSem for an object that was opened.
func adoptSem(fd int, path, name string, uid uint32) (*NamedSem, error) {
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return nil, &os.PathError{Op: "stat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG || st.Uid != uid || st.Size < semBytes {
		return nil, &os.PathError{Op: "open", Path: path, Err: syscall.EPERM}
	}
	m, err := Map(fd, semBytes)
	if err != nil {
		return nil, &os.PathError{Op: "map", Path: path, Err: err}
	}
	return &NamedSem{Sem: m.Sem(0), m: m, name: name}, nil
}

// Name returns the semaphore's name, without "sem.".
func (s *NamedSem) Name() string { return s.name }

// Path returns the path of the semaphore's object, as those see it whose Dir it is in.
func (s *NamedSem) Path() string { return filepath.Join(Dir, "sem."+s.name) }

// Usable reports whether the semaphore's user can open it by its name and post to it.
// Its user may have removed, replaced, shrunk or locked it. Usable waits for no lock that
// the user could hold.
func (s *NamedSem) Usable() bool {
	var mine, named unix.Stat_t
	if unix.Fstat(s.m.fd, &mine) != nil || s.statName(&named) != nil {
		return false
	}
	const readWrite = 0o600
	return mine.Ino == named.Ino && mine.Dev == named.Dev && mine.Size >= semBytes && mine.Mode&readWrite == readWrite &&
		mine.Blocks <= mostSemBlocks && Guard(s.restoreMark) == nil
}

// mostSemBlocks is how much memory an object may have, in units of 512 bytes: a page of any
// size that is usual.
const mostSemBlocks = 4 << 20 / 512

// Grown reports whether the semaphore's user has given its object so much memory that an
// access can take long: it waits while the user punches all of that out.
func (s *NamedSem) Grown() bool {
	var st unix.Stat_t
	return unix.Fstat(s.m.fd, &st) != nil || st.Blocks > mostSemBlocks
}

// Repair restores an object that was shrunk or has grown, so that programs that have mapped it can go
// on, and wakes all waiters. It may wait for as long as the object's user likes, who can
// hold the lock of the file.
func (s *NamedSem) Repair() error {
	if err := unix.Ftruncate(s.m.fd, semBytes); err != nil {
		return err
	}
	return Guard(func() {
		s.Init()
		futex(s.valueAddr(), futexWake, math.MaxInt32, nil)
	})
}

// Close unmaps the semaphore. With remove, for its creator, it removes the name, too.
func (s *NamedSem) Close(remove bool) {
	if remove {
		s.RemoveName()
	}
	s.m.Unmap()
}

// RemoveName removes the name, unless it means another object by now. Who has opened the
// semaphore can go on using it. For one that is elsewhere, see RemoveNameIn.
func (s *NamedSem) RemoveName() {
	if s.elsewhere {
		s.RemoveNameIn(s.dir)
		return
	}
	var named unix.Stat_t
	if unix.Lstat(s.Path(), &named) == nil && s.is(&named) {
		_ = Remove("sem." + s.name)
	}
}

// RemoveNameIn is RemoveName for a semaphore that is elsewhere, by another descriptor of its directory. Its user can hold the call up.
func (s *NamedSem) RemoveNameIn(dir int) {
	var named unix.Stat_t
	if statIn(dir, "sem."+s.name, &named) == nil && s.is(&named) {
		_ = unix.Unlinkat(dir, "sem."+s.name, 0) // a container's directory may be read-only by now
	}
}

// is reports whether a name is the semaphore's.
func (s *NamedSem) is(named *unix.Stat_t) bool {
	var mine unix.Stat_t
	return unix.Fstat(s.m.fd, &mine) == nil && mine.Ino == named.Ino && mine.Dev == named.Dev
}

// statName looks at what the semaphore's name means now.
func (s *NamedSem) statName(st *unix.Stat_t) error {
	if s.elsewhere {
		return statIn(s.dir, "sem."+s.name, st)
	}
	return unix.Lstat(s.Path(), st)
}
