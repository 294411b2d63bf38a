package ringserver

import (
	"path"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Register maps the shared memory object target and serves it as the iov or ring that
// name describes (3.3). When it returns, the object's name is no longer needed.
func (s *Server) Register(c cred.Caller, name, target string) (controldir.Registration, error) {
	link, err := wire.ParseLink(name)
	if err != nil {
		return controldir.Registration{}, err
	}
	fd, sizeBytes, target, err := openTarget(c, target)
	if err != nil {
		return controldir.Registration{}, err
	}
	defer unix.Close(fd)
	e := &entry{link: link, Registration: controldir.Registration{Name: name, Target: target, UID: c.UID, GID: c.GID}}
	if err := s.build(e, c, fd, sizeBytes); err != nil {
		return controldir.Registration{}, err
	}
	if e.owner, err = s.owners.join(c.PID, e); err != nil {
		e.unmap()
		return controldir.Registration{}, err
	}
	if e.ring != nil { // before it can be found, and so be dropped
		s.poller(link.Priority).add(e.ring)
	}
	if err := s.table.add(e); err != nil {
		if e.ring != nil {
			s.poller(link.Priority).remove(e.ring)
		}
		s.owners.leave(e)
		e.unmap()
		return controldir.Registration{}, err
	}
	// The process may have exited between join and add, when nothing could be reaped.
	s.owners.reapIfGone(e.owner)
	return e.Registration, nil
}

// build maps the object and checks it against its name.
func (s *Server) build(e *entry, c cred.Caller, fd int, sizeBytes int64) error {
	if sizeBytes <= 0 || e.link.BlockBytes > sizeBytes {
		return syscall.EINVAL
	}
	if !e.link.Ring {
		v, err := newIov(fd, sizeBytes, e.link.BlockBytes, c.UID)
		if err != nil {
			return syscall.EACCES
		}
		e.iov = v
		return nil
	}
	layout, ok := wire.LayoutOf(sizeBytes)
	if !ok || int(e.link.IODepth) > layout.Entries() {
		return syscall.EINVAL
	}
	m, err := shm.Map(fd, sizeBytes)
	if err != nil {
		return syscall.EACCES
	}
	e.ring, err = newRing(s, e.link, c, layout, m)
	if err != nil {
		m.Unmap()
	}
	return err
}

// Unregister ends a registration: no request can find it any more. Its memory stays
// mapped until the last request that uses it has finished.
func (s *Server) Unregister(c cred.Caller, name string) error {
	e := s.table.get(name)
	switch {
	case e == nil:
		return syscall.ENOENT
	case e.UID != c.UID:
		return syscall.EPERM
	}
	s.drop(e, "")
	return nil
}

// reap ends a registration whose process has exited.
func (s *Server) reap(e *entry) { s.drop(e, "its process has exited") }

func (s *Server) drop(e *entry, reason string) {
	if !s.table.remove(e) {
		return
	}
	if reason != "" {
		s.log.Debug("registration ended", "name", e.Name, "uid", e.UID, "reason", reason)
	}
	s.owners.leave(e)
	if e.ring != nil {
		s.poller(e.link.Priority).remove(e.ring)
	}
	e.unmap()
}

// unmap drops the registration's references to the memory.
func (e *entry) unmap() {
	if e.iov != nil {
		e.iov.close()
	}
	if e.ring != nil {
		e.ring.close()
	}
}

// openTarget opens a client's shared memory object read-write, if and only if the
// client could do so itself, and returns the target as a clean path.
//
// EINVAL: there is no such regular file. EACCES: it lies outside /dev/shm or in a
// sub-directory of it, it is a symbolic link, or c may not open it.
func openTarget(c cred.Caller, target string) (fd int, sizeBytes int64, normal string, err error) {
	if !strings.HasPrefix(target, "/") {
		return -1, 0, "", syscall.EINVAL
	}
	normal = path.Clean(target)
	if path.Dir(normal) != shm.Dir {
		return -1, 0, "", outside(c, normal)
	}
	at, err := unix.Open(normal, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, 0, "", syscall.EINVAL
	}
	defer unix.Close(at)
	var st unix.Stat_t
	if err := unix.Fstat(at, &st); err != nil {
		return -1, 0, "", syscall.EINVAL
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFREG:
	case unix.S_IFLNK:
		return -1, 0, "", syscall.EACCES
	default:
		return -1, 0, "", syscall.EINVAL
	}
	// Opening through /proc yields the object that was examined, even if its name
	// means another one by now, and never a FIFO or device.
	again := "/proc/self/fd/" + strconv.Itoa(at)
	err = cred.RunAs(c, func() (err error) {
		fd, err = unix.Open(again, unix.O_RDWR|unix.O_CLOEXEC, 0)
		return err
	})
	if err != nil {
		return -1, 0, "", syscall.EACCES
	}
	// Both sides derive the layout from the size after opening.
	if err := unix.Fstat(fd, &st); err != nil {
		unix.Close(fd)
		return -1, 0, "", syscall.EINVAL
	}
	return fd, st.Size, normal, nil
}

// outside returns the error for a target that is not directly in /dev/shm. It uses the
// rights of c, so that the error reveals nothing that c could not see itself.
func outside(c cred.Caller, target string) error {
	var st unix.Stat_t
	err := cred.RunAs(c, func() error { return unix.Stat(target, &st) })
	if err != nil || st.Mode&unix.S_IFMT != unix.S_IFREG {
		return syscall.EINVAL
	}
	return syscall.EACCES
}
