package shm

import (
	"fmt"
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
