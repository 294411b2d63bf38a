package tree

import "golang.org/x/sys/unix"

// Directories can be locked: a mark that clients set and read, which keeps nobody
// from anything here. It lasts as long as the directory, at most until the stage
// is closed.

// Lock marks a directory. ENOTDIR for what is none.
func (s *Stage) Lock(id uint64) error { return s.setLock(id, true) }

// Unlock takes the mark away: ENOLCK when there is none.
func (s *Stage) Unlock(id uint64) error { return s.setLock(id, false) }

// Locked says whether a node is a marked directory.
func (s *Stage) Locked(id uint64) bool {
	n, err := s.node(id)
	if err != nil {
		return false
	}
	s.locksMu.Lock()
	defer s.locksMu.Unlock()
	return s.locks[n.key]
}

func (s *Stage) setLock(id uint64, on bool) error {
	n, err := s.node(id)
	if err != nil {
		return err
	}
	if !n.directory() {
		return unix.ENOTDIR
	}
	s.locksMu.Lock()
	defer s.locksMu.Unlock()
	if on {
		s.locks[n.key] = true
		return nil
	}
	if !s.locks[n.key] {
		return unix.ENOLCK
	}
	delete(s.locks, n.key)
	return nil
}

// unlockGone forgets the mark of a directory that was removed: another one may
// get its inode number.
func (s *Stage) unlockGone(k identity) {
	s.locksMu.Lock()
	delete(s.locks, k)
	s.locksMu.Unlock()
}
