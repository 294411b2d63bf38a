package ringserver

import (
	"fmt"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// What clients with a /dev/shm of their own have left to a successor is found through the root directories of their
// processes again.

// again returns the /dev/shm of a kept registration: it is open already, or the process that owns the registration has it.
// The caller releases it.
func (d *devShms) again(k *keptRegistration) (*devShm, error) {
	if k.Shm == nil {
		return nil, nil
	}
	if x := d.hold(*k.Shm); x != nil {
		return x, nil
	}
	if k.Owner == nil {
		return nil, fmt.Errorf("its %s was its client's own, whose process cannot be seen", shm.Dir)
	}
	return d.ofProcess(*k.Owner, *k.Shm)
}

// ofProcess returns the /dev/shm of a process that has not exited, if it is that one. The caller releases it.
func (d *devShms) ofProcess(k keptProcess, id devShmID) (*devShm, error) {
	if !d.known {
		return nil, errOldKernel
	}
	x, err := d.through(uint32(k.TGID))
	if err != nil {
		return nil, err
	}
	if startOf(k.TGID) != k.Start {
		x.release()
		return nil, errOwnerGone
	}
	if x == nil || x.id != id {
		x.release()
		return nil, fmt.Errorf("process %d has another %s by now", k.TGID, shm.Dir)
	}
	return x, nil
}

// adoptSemaphoresElsewhere goes on with the semaphores of a user in a /dev/shm that is not the daemon's own, while a process lives
// that has it. Otherwise they are removed when a client there reads a link next.
func (s *Server) adoptSemaphoresElsewhere(name, run string) {
	file := semaphoresDir + "/" + name
	version, text, err := s.legacy.dir.Read(file)
	var k keptSemaphores
	var names [3]string
	if err == nil {
		k, names, err = decodeSemaphoresElsewhere(version, text, run)
	}
	if err == nil && semaphoresElsewhereFile(k.UID, k.Shm) != file {
		err = fmt.Errorf("they are those of user %d: %w", k.UID, restart.ErrDamaged)
	}
	if err == nil && !s.legacy.charge(file, k.UID) {
		err = errNoRoom
	}
	if err == nil {
		err = s.adoptReaders(k, names)
	}
	if err != nil {
		s.log.Warn("a user's submit semaphores in the "+shm.Dir+" of a container were given up: requests of its clients there are found some 50 ms late until they open new rings", "user", name, "err", err)
		s.legacy.remove(file)
	}
}

func (s *Server) adoptReaders(k keptSemaphores, names [3]string) error {
	adopted := false
	for _, reader := range k.Readers {
		x, gone := s.shms.ofProcess(reader, k.Shm)
		if gone != nil {
			continue
		}
		if !adopted {
			if err := s.submit.adoptIn(x, k.UID, names); err != nil {
				x.release()
				return err
			}
		}
		if err := s.owners.rereads(k.UID, reader, x); err == nil {
			adopted = true
		}
		x.release() // ends the set, unless it was adopted
	}
	if !adopted {
		return errOwnerGone
	}
	return nil
}

// adoptIn is adopt in a /dev/shm that is not the daemon's own.
func (s *submitSems) adoptIn(x *devShm, uid uint32, names [3]string) error {
	s.mu.Lock()
	defer s.unlock()
	k := semsKey{uid, x}
	if s.users[k] != nil || !s.elsewhere.Take(uid, 1) {
		return syscall.EMFILE
	}
	var sems [3]*submitSem
	for i, name := range names {
		sem, err := shm.AdoptSemIn(x.dir, name, uid)
		if err != nil {
			for _, opened := range sems[:i] {
				opened.Close(false)
			}
			s.elsewhere.Return(uid, 1)
			return err
		}
		sems[i] = &submitSem{NamedSem: sem, uid: uid, elsewhere: true}
	}
	s.user(k).sems = sems
	return nil
}

// rereads is reads for a process that a predecessor has known.
func (o *owners) rereads(uid uint32, k keptProcess, x *devShm) error {
	o.mu.Lock()
	defer o.unlock()
	w, err := o.refind(uid, k)
	if err != nil {
		return err
	}
	return w.reads(x)
}
