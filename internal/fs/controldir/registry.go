package controldir

import (
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Registry holds the registrations of shared memory: the ring server, as the control
// directory sees it. Its methods may be called concurrently. Errors are syscall.Errno;
// after an error nothing has changed.
type Registry interface {
	// Register maps target and serves it as name says (3.3). When it has returned,
	// the client may remove the target's name.
	Register(c cred.Caller, name, target string) (Registration, error)
	// Unregister ends a registration. Errors: ENOENT, and EPERM for another uid's.
	Unregister(c cred.Caller, name string) error
	// Lookup finds a registration by its exact name, whoever owns it.
	Lookup(name string) (Registration, bool)
	// ByIndex finds a registration by its table index, which its inode number shows.
	ByIndex(index int) (Registration, bool)
	// List returns a user's registrations in order of registration.
	List(uid uint32) []Registration
	// SubmitLink returns "/dev/shm/sem.<name>" of a priority's submit semaphore.
	SubmitLink(p wire.Priority) string
	// DirOpened records an open of the iovs directory, DirReleased its last close. In
	// between, the registrations of c's process outlive the process (3.7).
	DirOpened(c cred.Caller) (handle uint64)
	DirReleased(handle uint64)
}

// Registration is one iov or ring. Index is in [0, wire.MaxIovs).
type Registration struct {
	Index        int
	Name, Target string
	UID, GID     uint32
}
