package ringserver

import (
	"errors"
	"fmt"
	"path"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// noteRefused logs that a registration was refused, with what to do about it.
func (s *Server) noteRefused(c cred.Caller, name, target string, err error) {
	if more, now := s.pace.Log(fmt.Sprint("registration ", c.UID, " ", err)); now {
		s.log.Warn("refused a registration", "name", name, "target", target, "uid", c.UID, "pid", c.PID, "err", err, "cure", s.cureOfRefusal(c, name, target, err), "more", more)
	}
}

// noteNoSemaphore logs that a client gets no submit semaphore.
func (s *Server) noteNoSemaphore(c cred.Caller, err error) {
	cure := "kv3fs doctor, where the client runs"
	var refused *refusedShm
	switch {
	case errors.As(err, &refused):
		cure = refused.cure
	case errors.Is(err, syscall.ESRCH), errors.Is(err, syscall.ESHUTDOWN):
		return
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		cure = "fewer users, containers or processes with rings, or higher --limit-ring-users and ulimit -n"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EROFS):
		cure = "a " + shm.Dir + " in which the client may create objects: mode 1777, mounted read-write"
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		cure = "free space in the client's " + shm.Dir
	}
	if more, now := s.pace.Log(fmt.Sprint("semaphore ", c.UID, " ", err)); now {
		s.log.Warn("refused a submit semaphore: the client cannot open rings", "uid", c.UID, "pid", c.PID, "err", err, "cure", cure, "more", more)
	}
}

func (s *Server) cureOfRefusal(c cred.Caller, name, target string, err error) string {
	var refused *refusedShm
	if errors.As(err, &refused) {
		return refused.cure
	}
	_, nameErr := wire.ParseLink(name)
	inShm := path.IsAbs(target) && path.Dir(path.Clean(target)) == shm.Dir
	switch {
	case nameErr != nil:
		return "a client of 3FS's protocol: no other makes links here"
	case !inShm:
		return "an object directly in " + shm.Dir
	}
	var st unix.Stat_t
	statErr := s.stat(c, path.Base(path.Clean(target)), &st)
	switch {
	case statErr == unix.ENOENT:
		return "an object that is in the client's " + shm.Dir + " when it is registered: this one is not, or not any more"
	case errors.Is(err, syscall.EACCES) && statErr == nil:
		return fmt.Sprintf("an object that the user may read and write: this one has mode %#o and is user %d's", st.Mode&0o7777, st.Uid)
	case errors.Is(err, syscall.EINVAL) && statErr == nil:
		return fmt.Sprintf("an object of the size that its name asks for: this one has %d bytes; a ring has at most %d entries", st.Size, wire.MostEntries)
	case errors.Is(err, syscall.ENOMEM):
		return "fewer or smaller iovs, or a higher --limit-mapped"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		return "fewer iovs and rings, or higher --limit-registrations, --limit-ring-users and ulimit -n"
	case errors.Is(err, syscall.ENOSPC):
		return "free space: df " + shm.Dir
	}
	return "kv3fs doctor"
}

// stat looks at an object of a client.
func (s *Server) stat(c cred.Caller, name string, st *unix.Stat_t) error {
	in, _, err := s.shms.find(c)
	if err != nil {
		return err
	}
	defer in.release()
	dir, err := in.path()
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	at, err := nameIn(dir, name)
	if err != nil {
		return err
	}
	defer unix.Close(at)
	return unix.Fstat(at, st)
}

// noRoom is the error of a write for which the limits of kv3fs have no room, whatever the disk has.
type noRoom struct{ error }

func (e noRoom) Error() string {
	return "no room within the capacity, or a quota of kv3fs: " + e.error.Error()
}

// Unwrap returns the error that the client gets.
func (e noRoom) Unwrap() error { return e.error }

func (e noRoom) is(errno syscall.Errno) bool { return errors.Is(e.error, errno) }

// noteFailed logs that a request failed for a reason that an operator must know.
func (s *Server) noteFailed(r *ring, q *request, err error) {
	cure := ""
	var limit noRoom
	switch {
	case errors.As(err, &limit) && (limit.is(syscall.ENOSPC) || limit.is(syscall.EDQUOT)):
		cure = "a larger --capacity or kv3fs quota, or fewer pins: what is left may not go; kv3fs stat and kv3fs ls show it"
	case errors.Is(err, syscall.ENOSPC) && s.opts.DiskFull != nil:
		s.opts.DiskFull()
		return
	case errors.Is(err, syscall.ENOSPC):
		cure = "delete what is not needed: df and df -i of the data directory"
	case errors.Is(err, syscall.EDQUOT):
		cure = "a larger quota for the user"
	case errors.Is(err, syscall.EIO):
		cure = "look at what the kernel says about the disk: dmesg"
	default:
		return
	}
	if more, now := s.pace.Log(fmt.Sprint("request ", err)); now {
		s.log.Error("requests of rings fail", "err", err, "file", s.files.Path(q.args.FileIno), "write", r.write, "inode", q.args.FileIno, "uid", r.cred.UID, "cure", cure, "more", more)
	}
}
