package fuseserver

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/invariants"
)

// passthrough decides how the bytes of each open file travel. The kernel requires that
// all opens of an inode use the same route and share one backing id.
type passthrough struct {
	server  *fuse.Server
	enabled atomic.Bool

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

func mayPassthrough(o Options) bool { return o.Passthrough == PassthroughAuto && os.Geteuid() == 0 }

func (p *passthrough) start(server *fuse.Server, o Options) {
	p.server = server
	p.enabled.Store(mayPassthrough(o) && server.KernelSettings().Flags64()&fuse.CAP_PASSTHROUGH != 0)
}

// open chooses the route of a new open file and fills in the reply.
func (p *passthrough) open(h *tree.Handle, out *fuse.OpenOut) {
	r := p.enter(h.ID())
	r.chosen.Do(func() { p.choose(h, r) })
	if r.kernel {
		out.OpenFlags, out.BackingID = fuse.FOPEN_PASSTHROUGH, r.id
	}
	if !r.kernel || !r.rights.suits(h) {
		// Overrides passthrough, which the kernel wants to see where others have it.
		out.OpenFlags |= fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
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

func (p *passthrough) choose(h *tree.Handle, r *route) {
	// Not on a device without O_DIRECT, where a client's open with that flag would fail.
	if !p.enabled.Load() || !h.DirectIO() {
		return
	}
	r.rights = backingFor(h)
	if blockio.KindOfFile(h.FD()) == blockio.Foreign {
		// Another machine or program has the file. It knows nobody, and need not let
		// nobody open what a client has opened with its own rights. The daemon's rights
		// clear no set-id bits.
		if h.HasSetID() {
			return
		}
		r.rights = asAnyone
	}
	register := func() error {
		id, errno := p.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(h.FD())})
		if errno != 0 {
			return errno
		}
		r.id, r.kernel = id, true
		return nil
	}
	if r.rights == asUser {
		_ = cred.Confined(register) // without it, bytes go through the daemon
		return
	}
	_ = register() // as above
}

// close ends one open file of a node.
func (p *passthrough) close(id uint64) {
	r := p.leave(id)
	if r != nil && r.kernel {
		_ = p.server.UnregisterBackingFd(r.id) // fails only without a connection, which drops the id
	}
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
