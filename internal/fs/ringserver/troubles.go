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

// notHere is what the doctor says where a client and the daemon have different /dev/shm.
const notHere = "the client's " + shm.Dir + " is not the daemon's: rings are shared memory; docker run --ipc=host, or -v /dev/shm:/dev/shm; Kubernetes: hostIPC: true"

// noteRefused logs that a registration was refused, with what to do about it.
func (s *Server) noteRefused(c cred.Caller, name, target string, err error) {
	if more, now := s.pace.Log(fmt.Sprint("registration ", c.UID, " ", err)); now {
		s.log.Warn("refused a registration", "name", name, "target", target, "uid", c.UID, "pid", c.PID, "err", err, "cure", cureOfRefusal(name, target, err), "more", more)
	}
}

func cureOfRefusal(name, target string, err error) string {
	_, nameErr := wire.ParseLink(name)
	inShm := path.IsAbs(target) && path.Dir(path.Clean(target)) == shm.Dir
	switch {
	case nameErr != nil:
		return "a client of 3FS's protocol: no other makes links here"
	case !inShm:
		return "an object directly in " + shm.Dir
	}
	var st unix.Stat_t
	statErr := unix.Lstat(path.Clean(target), &st)
	switch {
	case statErr == unix.ENOENT:
		return notHere
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
