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
	// SubmitLink returns "/dev/shm/sem.<name>" of the submit semaphore of c's user and a priority, in
	// the /dev/shm that c's process has: SubmitTargetBytes bytes. Only that user can open it. It is created at its first use;
	// EMFILE: too many users have one.
	SubmitLink(c cred.Caller, p wire.Priority) (string, error)
	// DirOpened records an open of the iovs directory, DirReleased its last close. In
	// between, the registrations of c's process outlive the process (3.7). EMFILE: the
	// user has too many.
	DirOpened(c cred.Caller) (handle uint64, err error)
	DirReleased(handle uint64)
	// DirsStayOpen says which handles of a predecessor are open. Its other ones are released.
	DirsStayOpen(handles []uint64)
}

// SubmitTargetBytes is the length of every submit link's target. It is the same for all
// users, because the kernel may show one user the attributes that another has asked for.
const SubmitTargetBytes = len("/dev/shm/sem.hf3fs-submit-ios.") + len("01234567-0123-0123-0123-0123456789ab")

// Registration is one iov or ring. Index is in [0, wire.MaxIovs).
type Registration struct {
	Index        int
	Name, Target string
	UID, GID     uint32
}
