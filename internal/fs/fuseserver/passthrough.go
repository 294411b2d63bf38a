package fuseserver

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/invariants"
)

// passthrough decides how the bytes of each open file travel. The kernel requires that
// all opens of an inode use the same route and share one backing id.
//
// A shared mapping of a file is coherent with rings only if it shows the pages of the
// backing file, which it does if the kernel has the route. Otherwise it would show a copy
// of them, and a page of the copy that is written back takes with it what a ring has
// written to the same page; so the kernel is not told to allow it, and refuses it: ENODEV.
type passthrough struct {
	register   func(fd int) (id int32, err error)
	unregister func(id int32) // fails only without a connection, which drops the id
	seesWrites bool           // the daemon must see every write
	why        string         // why no file takes the kernel's route; empty: they do where they can
	failures   failures

	mu    sync.Mutex        // no system call is made under it: one on a slow disk would delay all opens
	nodes map[uint64]*route // nodes with open files
}

// route is how the bytes of one node travel while it is open.
type route struct {
	opens  int // guarded by passthrough.mu
	chosen sync.Once
	kernel bool
	id     int32   // the backing id, if kernel is set
	rights backing // what the kernel does with the id
}

// backing is with whose rights the kernel writes to a backing file: those of the thread
// that registered it, whoever writes.
type backing int

const (
	asUser backing = iota // an ordinary user's, see cred.Confined
	asRoot
	asAnyone // the daemon's: the file system checks rights by itself
)

// suits reports whether what h may do is what the kernel does. The same file may be open
// by the super-user and by others.
func (b backing) suits(h *tree.Handle) bool {
	return !h.Writes() || b == asAnyone || b == backingFor(h)
}

func backingFor(h *tree.Handle) backing {
	if h.UID() == 0 {
		return asRoot
	}
	return asUser
}

func newPassthrough(log *slog.Logger) *passthrough {
	return &passthrough{nodes: make(map[uint64]*route), failures: failures{log: log}}
}

func (p *passthrough) start(server *fuse.Server, t *tree.Tree, o Options) {
	p.register = func(fd int) (int32, error) {
		id, errno := server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(fd)})
		if errno != 0 {
			return 0, errno
		}
		return id, nil
	}
	p.seesWrites = t.Limited()
	p.unregister = func(id int32) { _ = server.UnregisterBackingFd(id) }
	p.why = p.whyNot(t, o, server.KernelSettings().Flags64()&fuse.CAP_PASSTHROUGH != 0)
}

// open chooses the route of a new open file, which a client opens with flags, and fills in the reply.
func (p *passthrough) open(in *fuse.InHeader, flags uint32, h *tree.Handle, out *fuse.OpenOut) {
	r := p.enter(h.ID())
	r.chosen.Do(func() { p.choose(h, r) })
	if r.kernel {
		out.OpenFlags, out.BackingID = fuse.FOPEN_PASSTHROUGH, r.id
	}
	asks := !r.rights.suits(h) || p.seesWrites && h.Writes()
	if r.kernel {
		h.Passes(tree.Opener{Thread: in.Pid, Direct: flags&unix.O_DIRECT != 0, Seen: asks})
	}
	if !r.kernel || asks {
		// Overrides passthrough, which the kernel wants to see where others have it.
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
	}
	if !h.CloseMayFail() {
		// It need not ask. A process that ends closes its files in the kernel, where not
		// even SIGKILL frees it from a daemon that is stopped.
		out.OpenFlags |= fuse.FOPEN_NOFLUSH
	}
}

// enter counts one open file of a node.
func (p *passthrough) enter(id uint64) *route {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.nodes[id]
	if r == nil {
		r = &route{}
		p.nodes[id] = r
	}
	r.opens++
	return r
}

// What fails for a moment, for want of memory or descriptors, is tried again after
// firstRetry, each time longer, up to lastRetry.
const (
	firstRetry = time.Millisecond
	lastRetry  = 64 * time.Millisecond
)

func (p *passthrough) choose(h *tree.Handle, r *route) {
	if p.why != "" {
		return
	}
	for wait := firstRetry; ; wait *= 4 {
		err := p.try(h, r)
		if err == nil {
			return
		}
		if lasting(err) || wait > lastRetry {
			p.failures.add(h, err)
			return
		}
		time.Sleep(wait)
	}
}

// errNoDirectIO is why files of a device without O_DIRECT do not take the kernel's route: a
// client's open with that flag would fail.
var errNoDirectIO = fmt.Errorf("the file's device has no O_DIRECT: %w", unix.EOPNOTSUPP)

// lasting reports whether trying again is of no use.
func lasting(err error) bool {
	for _, e := range []error{unix.EPERM, unix.ELOOP, unix.EINVAL, unix.EOPNOTSUPP, unix.ENOTTY, unix.EBADF} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// try gives a file the kernel's route if it may have it.
func (p *passthrough) try(h *tree.Handle, r *route) error {
	switch direct, err := h.DirectIO(); {
	case err != nil:
		return err
	case !direct:
		return errNoDirectIO
	}
	r.rights = backingFor(h)
	if blockio.KindOfFile(h.FD()) == blockio.Foreign {
		// Another machine or program has the file. It knows nobody, and need not let
		// nobody open what a client has opened with its own rights. The daemon's rights
		// clear no set-id bits.
		if h.HasSetID() {
			return nil
		}
		r.rights = asAnyone
	}
	register := func() (err error) {
		r.id, err = p.register(h.FD())
		r.kernel = err == nil
		return err
	}
	if r.rights == asUser {
		return cred.Confined(register)
	}
	return register()
}

// rightsOf returns the rights of a node's backing id, for a successor.
func (p *passthrough) rightsOf(id uint64) backing {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r := p.nodes[id]; r != nil {
		return r.rights
	}
	return asUser
}

// recall counts an open file of a predecessor, which has chosen its route.
func (p *passthrough) recall(h *handleRecord) {
	r := p.enter(h.File.Node)
	r.chosen.Do(func() { r.id, r.rights = h.Backing, h.Rights })
	if passes, _ := h.passes(); passes {
		r.kernel, r.id, r.rights = true, h.Backing, h.Rights
	}
}

// close ends one open file of a node.
func (p *passthrough) close(id uint64) {
	r := p.leave(id)
	if r != nil && r.kernel {
		p.unregister(r.id)
	}
}

// openNodes returns the nodes with open files.
func (p *passthrough) openNodes() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Collect(maps.Keys(p.nodes))
}

// leave counts one open file of a node less, and returns its route if that was the last.
func (p *passthrough) leave(id uint64) *route {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.nodes[id]
	invariants.Check(r != nil && r.opens > 0, "node %d is closed more often than opened", id)
	if r == nil {
		return nil
	}
	if r.opens--; r.opens > 0 {
		return nil
	}
	delete(p.nodes, id)
	return r
}
