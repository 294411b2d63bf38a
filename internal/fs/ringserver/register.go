package ringserver

import (
	"encoding/binary"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Register maps the shared memory object target and serves it as the iov or ring that
// name describes (3.3). When it returns, the object's name is no longer needed.
func (s *Server) Register(c cred.Caller, name, target string) (controldir.Registration, error) {
	done, err := s.register(c, name, target)
	if err != nil {
		s.noteRefused(c, name, target, err)
		s.refusals.add(refusedKind(name), err)
	}
	return done, err
}

func (s *Server) register(c cred.Caller, name, target string) (controldir.Registration, error) {
	link, err := wire.ParseLink(name)
	if err != nil {
		return controldir.Registration{}, err
	}
	c = c.WithGroups() // its thread may end before the registration does
	in, doubt, err := s.shms.find(c)
	if err != nil {
		return controldir.Registration{}, err
	}
	defer in.release()
	fd, sizeBytes, target, err := openTarget(c, in, target)
	if err == syscall.EINVAL && doubt != nil {
		err = doubted(doubt)
	}
	if err != nil {
		return controldir.Registration{}, err
	}
	defer unix.Close(fd)
	e := &entry{link: link, shm: in, bytes: sizeBytes, Registration: controldir.Registration{Name: name, Target: target, UID: c.UID, GID: c.GID}}
	e.object, _ = identify(fd, new(unix.Statx_t)) // else it is not removed later
	if s.legacy != nil {
		e.id = s.lastID.Add(1)
		if handle, _, err := unix.NameToHandleAt(fd, "", unix.AT_EMPTY_PATH); err == nil { // else it is found by its name
			e.handleType, e.handle = handle.Type(), handle.Bytes()
		}
	}
	if err := s.build(e, c, fd, sizeBytes); err != nil {
		return controldir.Registration{}, err
	}
	in.hold() // until unmap
	if e.owner, err = s.owners.join(c.UID, c.PID, e); err != nil {
		e.unmap()
		s.legacy.forget(e.id)
		return controldir.Registration{}, err
	}
	if e.ring != nil { // before it can be found, and so be dropped
		s.countFor(e)
		s.poller(link.Priority).add(e.ring)
	}
	if err := s.table.add(e); err != nil {
		s.undo(e)
		return controldir.Registration{}, err
	}
	if err := s.legacy.keep(e, c); err != nil {
		s.endsHere(e, err)
	}
	// The process may have exited between join and add, when nothing could be reaped.
	s.owners.reapIfGone(e.owner)
	return e.Registration, nil
}

// endsHere has a registration end with this daemon, because err keeps it from being noted for a successor.
func (s *Server) endsHere(e *entry, err error) {
	s.legacy.forget(e.id)
	if e.ring != nil {
		_ = e.ring.promise(0) // its client is not to wait for another daemon
	}
	if more, now := s.pace.Log("kept"); now {
		s.log.Warn("a registration will end with this daemon: it cannot be noted for a successor", "name", e.Name, "uid", e.UID, "err", err, "cure", "make room in the directory of --restart-state", "more", more)
	}
}

// undo is drop for an entry that is not in the table.
func (s *Server) undo(e *entry) {
	if e.ring != nil {
		s.poller(e.link.Priority).remove(e.ring)
	}
	s.owners.leave(e)
	e.unmap()
	s.legacy.forget(e.id)
}

// build maps the object and checks it against its name.
func (s *Server) build(e *entry, c cred.Caller, fd int, sizeBytes int64) error {
	if sizeBytes <= 0 || e.link.BlockBytes > sizeBytes {
		return syscall.EINVAL
	}
	if !e.link.Ring {
		m, err := mapObject(fd, sizeBytes, s.mappedBytes, c.UID)
		if err != nil {
			return err
		}
		e.iov = newIov(m, e.link.BlockBytes)
		return nil
	}
	layout, ok := wire.LayoutOf(sizeBytes)
	if !ok || int(e.link.IODepth) > layout.Entries() {
		return syscall.EINVAL
	}
	if layout.Entries() > wire.MostEntries {
		return syscall.EINVAL
	}
	m, err := mapObject(fd, sizeBytes, s.mappedBytes, c.UID)
	if err != nil {
		return err
	}
	sqeTail, cqeHead, err := begin(m, layout)
	if err != nil {
		m.Unmap()
		return err
	}
	e.ring = newRing(s, e.link, c, layout, m, sqeTail, cqeHead)
	e.ring.shm = e.shm
	s.outlive(e)
	return nil
}

// outlive begins the journal of a new ring, if the state of this daemon is kept. A ring without one
// ends with the daemon.
func (s *Server) outlive(e *entry) {
	if s.legacy == nil {
		return
	}
	r := e.ring
	j, err := newJournal(s.legacy.dir.Path(journalFile(e.id)), r.layout, r.sqeTail, r.cqeHead, s.legacy.dir, e.UID)
	if err != nil {
		if more, now := s.pace.Log("journal"); now {
			s.log.Warn("a ring will end with this daemon: its journal cannot be made", "uid", e.UID, "err", err, "more", more)
		}
		return
	}
	r.journal = j
	if s.last.Load() {
		return
	}
	_ = r.promise(gapSeconds) // else its client gives up when the mount has ended
}

// begin initialises the memory of a ring and returns the daemon's markers: zero in a new
// object; others that the client left there are used once and never read back. It uses
// system calls, because the client may be punching holes into the object. EINVAL: the
// markers are out of range, or the object has been shrunk. ENOSPC: /dev/shm is full.
func begin(m mapped, layout wire.Layout) (sqeTail, cqeHead int32, err error) {
	var markers [wire.OffArgs]byte
	_, err = m.ReadAt(markers[:], 0)
	if err == nil {
		err = m.InitSem(layout.SemOff())
	}
	if err == nil { // memory that is used again may have the number of a waiter that was killed
		_, err = m.WriteAt(make([]byte, 16), layout.AwaitedOff()) // with the three words behind it
	}
	if err == unix.ENOSPC {
		return 0, 0, syscall.ENOSPC
	}
	sqeTail = int32(binary.LittleEndian.Uint32(markers[wire.OffSqeTail:]))
	cqeHead = int32(binary.LittleEndian.Uint32(markers[wire.OffCqeHead:]))
	if err != nil || !layout.Valid(sqeTail) || !layout.Valid(cqeHead) {
		return 0, 0, syscall.EINVAL
	}
	return sqeTail, cqeHead, nil
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
func (s *Server) reap(e *entry) {
	defer e.shm.hold().release() // which drop may be the last to do
	if s.drop(e, "its process has exited") {
		s.leftovers.add(e)
	}
}

// drop ends a registration and reports whether there was one.
func (s *Server) drop(e *entry, reason string) bool {
	if !s.table.remove(e) {
		return false
	}
	if reason != "" {
		s.log.Debug("registration ended", "name", e.Name, "uid", e.UID, "reason", reason)
	}
	s.owners.leave(e)
	if e.ring != nil {
		s.poller(e.link.Priority).remove(e.ring)
	}
	if !s.closing.Load() || !s.successor.Load() || e.ring != nil && e.ring.journal == nil {
		s.legacy.forget(e.id)
	}
	e.unmap()
	if e.inherited && !s.closing.Load() && s.inherited.end(e.UID) && s.opts.NoneInherited != nil {
		s.opts.NoneInherited(e.UID)
	}
	return true
}

// unmap drops the registration's references to the memory, and to the /dev/shm that it is in.
func (e *entry) unmap() {
	if e.iov != nil {
		e.iov.close()
	}
	if e.ring != nil {
		e.ring.close()
	}
	e.shm.release()
}
