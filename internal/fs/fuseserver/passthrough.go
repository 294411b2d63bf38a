package fuseserver

import (
	"os"
	"sync"
	"sync/atomic"

	"github.com/hanwen/go-fuse/v2/fuse"

	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/invariants"
)

// passthrough decides how the bytes of each open file travel. The kernel requires that
// all opens of an inode use the same route and share one backing id.
type passthrough struct {
	server  *fuse.Server
	enabled atomic.Bool

	mu    sync.Mutex
	nodes map[uint64]*route // nodes with open files
}

// route is how the bytes of one node travel while it is open.
type route struct {
	opens  int
	kernel bool
	id     int32 // the backing id, if kernel is set
}

func mayPassthrough(o Options) bool { return o.Passthrough == PassthroughAuto && os.Geteuid() == 0 }

func (p *passthrough) start(server *fuse.Server, o Options) {
	p.server = server
	p.enabled.Store(mayPassthrough(o) && server.KernelSettings().Flags64()&fuse.CAP_PASSTHROUGH != 0)
}

// open chooses the route of a new open file and fills in the reply.
func (p *passthrough) open(h *tree.Handle, out *fuse.OpenOut) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.nodes[h.ID()]
	if r == nil {
		r = p.choose(h)
		p.nodes[h.ID()] = r
	}
	r.opens++
	if r.kernel {
		out.OpenFlags, out.BackingID = fuse.FOPEN_PASSTHROUGH, r.id
		return
	}
	out.OpenFlags = fuse.FOPEN_DIRECT_IO | fuse.FOPEN_PARALLEL_DIRECT_WRITES
}

func (p *passthrough) choose(h *tree.Handle) *route {
	// Not for a file whose set-id bits a write clears: the kernel writes with the
	// daemon's rights, which clear nothing. And not on a device without O_DIRECT,
	// where a client's open with that flag would fail.
	if !p.enabled.Load() || h.HasSetID() || !h.DirectIO() {
		return &route{}
	}
	id, errno := p.server.RegisterBackingFd(&fuse.BackingMap{Fd: int32(h.FD())})
	if errno != 0 {
		return &route{}
	}
	return &route{kernel: true, id: id}
}

// close ends one open file of a node.
func (p *passthrough) close(id uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r := p.nodes[id]
	invariants.Check(r != nil && r.opens > 0, "node %d is closed more often than opened", id)
	if r == nil {
		return
	}
	if r.opens--; r.opens > 0 {
		return
	}
	delete(p.nodes, id)
	if r.kernel {
		_ = p.server.UnregisterBackingFd(r.id) // fails only without a connection, which drops the id
	}
}
