package fdstore

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Store is what a process has inherited and what of it shall outlive it. Its methods may be called concurrently. A nil Store has
// inherited nothing and keeps nothing.
type Store struct {
	manager string // the socket of who keeps descriptors; "": nobody does

	mu        sync.Mutex
	inherited []named
	kept      map[string]kept
	received  map[string]bool // by name, what our manager does not have, see Receive
}

type named struct {
	name string
	file *os.File
}

// kept is a descriptor that its owner has open.
type kept struct {
	conn syscall.Conn
	of   Connection
	own  bool // no manager has it, see Pass
}

// Connection is that of a FUSE device. The zero value is none.
type Connection struct {
	Minor uint32 // of the mount's device
	Point string // where it is mounted
}

// The variables of the environment.
const (
	envFDs     = "LISTEN_FDS"
	envNames   = "LISTEN_FDNAMES"
	envPID     = "LISTEN_PID"
	envAt      = "KV3FS_LISTEN_AT"
	envManager = "NOTIFY_SOCKET"
	envRoom    = "FDSTORE" // how many descriptors the manager keeps
)

const firstFD = 3

// Inherit takes over what the environment says that this process has inherited, and clears it, so that children do not take it for
// theirs. Call it once, before anything is opened.
func Inherit() (*Store, error) {
	s := &Store{manager: keeper(), kept: map[string]kept{}}
	count, names, pid, at := os.Getenv(envFDs), os.Getenv(envNames), os.Getenv(envPID), os.Getenv(envAt)
	for _, name := range []string{envFDs, envNames, envPID, envAt} {
		if err := os.Unsetenv(name); err != nil {
			return nil, err
		}
	}
	if count == "" || pid != "" && pid != strconv.Itoa(os.Getpid()) { // another process's
		return s, nil
	}
	fds, err := numbers(count, at)
	if err != nil {
		return nil, err
	}
	called := strings.Split(names, ":")
	for i, fd := range fds {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC); err != nil {
			return nil, fmt.Errorf("%s=%s promises descriptor %d: %w", envFDs, count, fd, err)
		}
		name := ""
		if i < len(called) {
			name = called[i]
		}
		s.inherited = append(s.inherited, named{name, os.NewFile(uintptr(fd), name)})
	}
	return s, nil
}

// mostFDs bounds what a process may be told to have inherited.
const mostFDs = 4096

// numbers returns the numbers of inherited descriptors.
func numbers(count, at string) (fds []int, err error) {
	n, err := strconv.Atoi(count)
	if err != nil || n < 0 || n > mostFDs {
		return nil, fmt.Errorf("%s=%q is no number of descriptors", envFDs, count)
	}
	if at == "" {
		for i := range n {
			fds = append(fds, firstFD+i)
		}
		return fds, nil
	}
	for text := range strings.SplitSeq(at, ",") {
		fd, err := strconv.Atoi(text)
		if err != nil || fd < firstFD || slices.Contains(fds, fd) {
			return nil, fmt.Errorf("%s=%q is no list of descriptors", envAt, at)
		}
		fds = append(fds, fd)
	}
	if len(fds) != n {
		return nil, fmt.Errorf("%s=%q does not name %d descriptors", envAt, at, n)
	}
	return fds, nil
}

// Take returns the inherited descriptor of a name, which is the caller's from then on; nil if there is none. Whoever has passed it on
// keeps it still: it is to be noted with Has, or removed.
func (s *Store) Take(name string) (taken *os.File) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inherited = slices.DeleteFunc(s.inherited, func(n named) bool {
		if n.name != name {
			return false
		}
		if taken != nil {
			taken.Close() // an older one
		}
		taken = n.file
		return true
	})
	return taken
}

// takeRest takes whatever was inherited, but what has one of some names.
func (s *Store) takeRest(but ...string) (rest []named) {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.inherited = slices.DeleteFunc(s.inherited, func(n named) bool {
		if slices.Contains(but, n.name) {
			return false
		}
		rest = append(rest, n)
		return true
	})
	return rest
}

// DropRest closes what nobody has taken, but what is still to be, and returns when the manager has closed it, too: an address is free
// then. It returns the names.
func (s *Store) DropRest(but ...string) (dropped []string, err error) {
	if s == nil {
		return nil, nil
	}
	var errs []error
	for _, n := range s.takeRest(but...) {
		errs = append(errs, n.file.Close(), s.tell("FDSTOREREMOVE=1\nFDNAME="+n.name, nil))
		dropped = append(dropped, n.name)
	}
	if len(dropped) > 0 {
		errs = append(errs, s.barrier())
	}
	return dropped, errors.Join(errs...)
}

// Has notes a descriptor that was inherited, and so is kept by the manager, if there is one; one that another process has sent, it has
// kept as Keep does. It stays the caller's, who calls Remove before closing it for good. of is the connection of a FUSE device.
func (s *Store) Has(name string, c syscall.Conn, of Connection) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	ours := !s.received[name]
	delete(s.received, name)
	s.mu.Unlock()
	if !ours {
		return s.Keep(name, c, of)
	}
	s.note(name, c, of)
	return nil
}

func (s *Store) note(name string, c syscall.Conn, of Connection) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[name] = kept{conn: c, of: of}
}

// Pass is Has for a descriptor that only Exec passes on, such as a lock, which must end with the process.
func (s *Store) Pass(name string, c syscall.Conn) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kept[name] = kept{conn: c, own: true}
}

// Inherits reports whether there is an inherited descriptor of a name that nobody has taken.
func (s *Store) Inherits(name string) bool {
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.inherited, func(n named) bool { return n.name == name })
}

// Keep is Has for a descriptor that the manager does not have: it returns when the manager has it, or has refused it.
func (s *Store) Keep(name string, c syscall.Conn, of Connection) error {
	if s == nil {
		return nil
	}
	s.note(name, c, of)
	message := "FDSTORE=1\nFDNAME=" + name
	if of.Minor != 0 {
		message += fmt.Sprintf("\n%s=%d %q", tagConnection, of.Minor, of.Point)
	}
	if err := s.tell(message, c); err != nil {
		return fmt.Errorf("have %s kept over a restart: %w", name, err)
	}
	return s.barrier()
}

// Remove forgets a descriptor, here and at the manager.
func (s *Store) Remove(name string) error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	delete(s.kept, name)
	s.mu.Unlock()
	if err := s.tell("FDSTOREREMOVE=1\nFDNAME="+name, nil); err != nil {
		return err
	}
	return s.barrier()
}

// RemoveAll is Remove for all that is kept: this process stops, and no other is to go on.
func (s *Store) RemoveAll() error {
	if s == nil {
		return nil
	}
	s.mu.Lock()
	maps.DeleteFunc(s.kept, func(_ string, k kept) bool { return k.own })
	names := slices.Sorted(maps.Keys(s.kept))
	s.mu.Unlock()
	var errs []error
	for _, name := range names {
		errs = append(errs, s.Remove(name))
	}
	return errors.Join(errs...)
}

// Managed reports whether there is a manager that keeps descriptors.
func (s *Store) Managed() bool { return s != nil && s.manager != "" }

// managerTime bounds how long a manager may take.
const managerTime = 5 * time.Second

// tell sends a message to the manager, if there is one, with a descriptor unless c is nil.
func (s *Store) tell(message string, c syscall.Conn) error {
	if s.manager == "" {
		return nil
	}
	to, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: s.manager, Net: "unixgram"})
	if err != nil {
		return err
	}
	defer func() { _ = to.Close() }() // a datagram is sent, or it is not
	if err := to.SetWriteDeadline(time.Now().Add(managerTime)); err != nil {
		return err
	}
	if c == nil {
		return send(to, message, nil)
	}
	return within(c, func(fd int) error { return send(to, message, unix.UnixRights(fd)) })
}

// send is WriteMsgUnix for a socket that is connected.
func send(to *net.UnixConn, message string, rights []byte) error {
	raw, err := to.SyscallConn()
	if err != nil {
		return err
	}
	var bad error
	return errors.Join(raw.Write(func(fd uintptr) bool {
		bad = unix.Sendmsg(int(fd), []byte(message), rights, nil, 0)
		return !errors.Is(bad, unix.EAGAIN)
	}), bad)
}

// barrier returns when the manager has read all messages before.
func (s *Store) barrier() error {
	if s.manager == "" {
		return nil
	}
	r, w, err := os.Pipe()
	if err != nil {
		return err
	}
	defer r.Close()
	err = s.tell("BARRIER=1", w)
	w.Close()
	if err != nil {
		return err
	}
	if err := r.SetReadDeadline(time.Now().Add(managerTime)); err != nil {
		return err
	}
	if _, err := r.Read(make([]byte, 1)); errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%s=%s has not answered for %v", envManager, s.manager, managerTime)
	}
	return nil // the end of the pipe: the manager has closed the other one
}

// within calls do with the number of a descriptor, which stays open and non-blocking meanwhile.
func within(c syscall.Conn, do func(fd int) error) error {
	raw, err := c.SyscallConn()
	if err != nil {
		return err
	}
	var bad error
	return errors.Join(raw.Control(func(fd uintptr) { bad = do(int(fd)) }), bad)
}
