package shm

import (
	"fmt"
	"math"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Create creates an object of sizeBytes zero bytes under Dir and maps it. name has no
// slash; mode is subject to the umask, as with shm_open.
func Create(name string, sizeBytes int64, mode os.FileMode) (*Mapping, error) {
	path := filepath.Join(Dir, name)
	fd, err := unix.Open(path, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, uint32(mode.Perm()))
	if err != nil {
		return nil, &os.PathError{Op: "create", Path: path, Err: err}
	}
	defer unix.Close(fd)
	m, err := func() (*Mapping, error) {
		if err := unix.Ftruncate(fd, sizeBytes); err != nil {
			return nil, err
		}
		return Map(fd, sizeBytes)
	}()
	if err != nil {
		os.Remove(path)
		return nil, fmt.Errorf("create %s with %d bytes: %w", path, sizeBytes, err)
	}
	return m, nil
}

// Remove removes an object's name; its mappings remain.
func Remove(name string) error { return os.Remove(filepath.Join(Dir, name)) }

// NamedSem is a POSIX named semaphore, as sem_open creates it: a 32-byte object with
// the name sem.<name>.
type NamedSem struct {
	Sem
	m    *Mapping
	name string
}

// CreateSem creates a named semaphore of value 0 that every user may post.
func CreateSem(name string) (*NamedSem, error) {
	m, err := Create("sem."+name, semBytes, 0o666)
	if err != nil {
		return nil, err
	}
	// The umask has reduced the mode; every uid must be able to open the semaphore.
	if err := unix.Fchmod(m.fd, 0o666); err != nil {
		m.Unmap()
		_ = Remove("sem." + name)
		return nil, fmt.Errorf("set the mode of semaphore %s: %w", name, err)
	}
	s := &NamedSem{Sem: m.Sem(0), m: m, name: name}
	s.Init()
	return s, nil
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

// Path returns the path of the semaphore's object.
func (s *NamedSem) Path() string { return filepath.Join(Dir, "sem."+s.name) }

// Repair restores an object that a process with write permission has shrunk, so that
// one hostile user cannot end the service for all. It wakes the waiters, which then
// register as waiters again.
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
	s.m.Unmap()
	if remove {
		_ = Remove("sem." + s.name)
	}
}
