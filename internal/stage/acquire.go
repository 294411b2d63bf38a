package stage

import (
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/cred"
)

// Acquire returns the file that inode number ino, as clients see it, means now,
// for one ring request or a batch of them, on behalf of c. The caller releases
// it when the request is done.
//
// c may use it in a direction for which the same uid has the inode open through
// the mount, by a right it had then; else the kernel is asked, as c. The super-user may do anything.
// Errors: EBADF when the kernel does not know ino (never looked up, or
// forgotten) or it is no regular file; EACCES when c may not; others from
// open(2).
func (s *Stage) Acquire(ino uint64, c cred.Caller, write bool) (*File, error) {
	n, ok := s.byIno.get(ino)
	if !ok || !n.regular() {
		return nil, unix.EBADF
	}
	dir := forReading
	if write {
		dir = forWriting
	}
	return s.acquire(n, c, dir)
}

func (s *Stage) acquire(n *node, c cred.Caller, dir direction) (*File, error) {
	of := s.useOpen(n)
	free := c.Root() || of.grantedLocked(c.UID, dir)
	if !free {
		if verdict, known := of.verdicts[verdictKey{c.UID, dir}]; known {
			if verdict != nil {
				of.endLocked()
				return nil, verdict
			}
			free = true
		}
	}
	if free {
		if f := of.coveringLocked(dir); f != nil {
			of.useLocked(f)
			of.mu.Unlock()
			return f, nil
		}
		return s.openLocked(of, accessFor(dir), nil)
	}
	epoch := of.epoch
	f, err := s.openLocked(of, accessFor(dir), &c)
	if err == unix.EPERM {
		err = unix.EACCES
	}
	if err == nil || err == unix.EACCES {
		of.noteVerdict(verdictKey{c.UID, dir}, err, epoch)
	}
	return f, err
}

// noteVerdict remembers what the kernel said while the file stays open through
// the mount: a file that nobody holds is asked about every time.
func (of *openFile) noteVerdict(k verdictKey, verdict error, epoch int) {
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.dead || of.handles == 0 || of.epoch != epoch {
		return
	}
	if of.verdicts == nil {
		of.verdicts = make(map[verdictKey]error)
	}
	of.verdicts[k] = verdict
}
