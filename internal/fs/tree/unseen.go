package tree

import (
	"crypto/rand"
	"errors"
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// Where the kernel reads, writes and maps a file itself, a client may store into it through
// a mapping. Nobody is told of that, and not of the mapping's end either: it may outlive the
// handle. So from the moment when a client can make such a mapping, the kernel keeps no
// attributes of the file, until the file is settled: nobody has it open for writing.

// unseen is added to a node's hotUntil while clients may write to it without anybody being
// told. The rest is the time from which settle may look whether that is over.
const unseen = 1 << 62

// Opener is a client that opens a file which the kernel reads, writes and maps itself.
type Opener struct {
	Thread uint32 // 0: of another PID namespace
	Direct bool   // it opens it with O_DIRECT
	Seen   bool   // its writes reach the daemon although it has passthrough
}

// Passes says that the kernel is about to open the file itself for the client of this handle. Call it before it does.
func (h *Handle) Passes(by Opener) {
	h.looked.unseen = !by.Seen
	sums := h.file.of.sums.Load() // where there are none yet, who has the file open will show
	switch {
	case h.access == unix.O_RDWR:
		h.mayBeMapped()
	case h.access == unix.O_RDONLY, by.Seen:
		sums.Passed(by.Thread)
	case by.Direct: // such writes may be under way for long before they show
		sums.Unseen()
	default:
		sums.Passed(by.Thread)
		sums.Passing()
		h.passing = sums
	}
}

// mayBeMapped says that clients can map the file for writing through this handle without the daemon.
func (h *Handle) mayBeMapped() {
	h.mapping()
	h.file.of.tree.written(h.file.of.node) // what the kernel has got before
}

func (h *Handle) mapping() {
	n := h.file.of.node
	if t := h.file.of.tree; t.counts(n.key) {
		h.mapped = true
		t.mapped.add(n, +1)
	}
	h.file.Sums().Unseen()
	n.hotUntil.Store(unseen)
}

// Keep returns how long the kernel may keep attributes of the file that it is given together
// with the handle, at most keep. It could not be told to forget them, since it does not know
// the file yet.
func (h *Handle) Keep(keep time.Duration) time.Duration {
	if h.file.of.node.hotUntil.Load() >= unseen {
		return 0
	}
	return keep
}

// settle lets the kernel keep attributes of n again if no client has it open and no mapping
// for writing is left.
func (t *Tree) settle(n *node) {
	until, now := n.hotUntil.Load(), t.now()
	if until < unseen || until-unseen > now || n.open.Load() != nil {
		return
	}
	fd, _, err := t.openNode(n, unix.O_RDONLY|unix.O_NONBLOCK, nil)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	if !tellsWriters(fd) {
		n.hotUntil.CompareAndSwap(until, math.MaxInt64)
		return
	}
	// While this is locked, the file is not opened here, neither for the kernel nor to fail
	// because of the lease.
	of := t.useOpen(n)
	defer of.endLocked()
	if of.handles > 0 || of.users > 0 {
		return
	}
	if hasWriter(fd) {
		n.hotUntil.CompareAndSwap(until, unseen+now+int64(hotPeriod))
		return
	}
	// What was read before this moment may be older than the last store.
	n.hotUntil.CompareAndSwap(until, t.now())
}

// tellsWriters reports whether hasWriter is right about files of this file system: those
// above others (overlay, FUSE) know only of the descriptors of their own files.
func tellsWriters(fd int) bool { return isLocal(fd) }

// hasWriter reports whether the file of a descriptor for reading may be open or mapped for
// writing. The kernel grants a lease for reading only where it is not, and does so without
// waiting. The lease ends at once; a process that opens the file meanwhile waits for that.
func hasWriter(fd int) bool {
	if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return true
	}
	_, err := unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	return err != nil
}

// CachePages says that the kernel is about to ask for bytes that it keeps in pages of its
// own. Until the last handle is closed, it is told to forget them at every write.
func (h *Handle) CachePages() { h.file.of.node.paged.Store(true) }

// freshen makes the kernel forget the pages that it holds of n after a write through the
// mount, whose attributes it forgets by itself.
func (t *Tree) freshen(n *node) {
	if n.paged.Load() {
		(*t.invalidate.Load())(n.id, true)
	}
}

// Sample opens a new file of the data directory that has no name, to try what files of its
// file system can do, and reports whether it can be opened with O_DIRECT.
func (t *Tree) Sample() (fd int, direct bool, err error) {
	state, err := openBeneath(t.rootFD, StateName, unix.O_PATH|unix.O_DIRECTORY)
	if err != nil {
		return -1, false, err
	}
	defer unix.Close(state)
	if fd, err = unnamed(state); err != nil {
		return -1, false, err
	}
	if direct, err = directIO(fd, unix.O_RDWR); err != nil {
		unix.Close(fd)
		return -1, false, err
	}
	return fd, direct, nil
}

const privateFile = 0o600

func unnamed(dir int) (fd int, err error) {
	fd, err = unix.Openat(dir, ".", unix.O_TMPFILE|unix.O_RDWR|unix.O_CLOEXEC, privateFile)
	if !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EISDIR) {
		return fd, err
	}
	return makeUnnamed(dir) // not every file system can make one
}

// makeUnnamed makes a file, whose name it removes. Daemons of other hosts, which may have the same process number, do so, too.
func makeUnnamed(dir int) (fd int, err error) {
	name := "sample-" + rand.Text()
	fd, err = unix.Openat(dir, name, unix.O_CREAT|unix.O_EXCL|unix.O_RDWR|unix.O_CLOEXEC|unix.O_NOFOLLOW, privateFile)
	if err != nil {
		return -1, err
	}
	if err := unix.Unlinkat(dir, name, 0); err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}
