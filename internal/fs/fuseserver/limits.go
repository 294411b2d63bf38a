package fuseserver

import "golang.org/x/sys/unix"

// Limits bound what the clients of a mount hold at once. A user other than root may hold a
// quarter of each, and a sixteenth is kept for root. 0 means the default.
type Limits struct {
	// Files bounds open files and directories. Beyond it: EMFILE. Default: a quarter of the
	// process's limit on open files.
	Files int
	// Requests bounds the requests that are being answered, each of which takes a thread
	// while the data directory does not answer. Beyond it: EAGAIN. Default: a sixteenth of
	// the process's limit on open files, since a request opens some, at most 4096.
	Requests int
	// Nodes is the number of files and directories beyond which the kernel is told to forget
	// some that nobody uses. Default: a million.
	Nodes int
}

// The process's limit on open files is shared out: 4/16 for open files, 2/16 for requests,
// each of which may open two, and 1/16 for what the tree can do without. The rest is the
// ring server's: 4/16 for registrations, 3/16 for semaphores, 2/16 for processes.
const (
	fileShare     = 4
	requestShare  = 1
	spareShare    = 1
	allDescriptor = 16

	mostRequests   = 4096 // the runtime ends a process with 10,000 threads
	fewestRequests = 256
	mostSpare      = 4096
	defaultNodes   = 1 << 20
)

// SpareDescriptors is the default of tree.Options.Spare for a tree that is mounted.
func SpareDescriptors() int { return min(descriptors()*spareShare/allDescriptor, mostSpare) }

func descriptors() int {
	var limit unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &limit) != nil {
		return 1024
	}
	return int(min(limit.Cur, 1<<30)) // the runtime has raised it to the hard limit
}

func (l *Limits) complete() {
	if l.Files == 0 {
		l.Files = descriptors() * fileShare / allDescriptor
	}
	if l.Requests == 0 {
		l.Requests = min(max(descriptors()*requestShare/allDescriptor, fewestRequests), mostRequests)
	}
	if l.Nodes == 0 {
		l.Nodes = defaultNodes
	}
}
