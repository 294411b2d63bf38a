package tree

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/lookups"
)

// lookedUp tells Options.Lookups how a user's look-up of an entry ended.
func (t *Tree) lookedUp(p place, uid uint32, st *unix.Statx_t, err error) {
	switch {
	case t.lookups == nil:
	case err == unix.ENOENT:
		t.lookups.Missing(t.path(p), uid)
	case err == nil && p.name[0] == '.':
		t.lookups.Found(t.path(p), st.Uid)
	}
}

// making tells Options.Lookups that a user is about to make an entry, see lookups.Counter.Making.
func (t *Tree) making(p place, uid uint32, fresh bool) {
	if t.lookups != nil {
		t.lookups.Making(t.path(p), uid, fresh)
	}
}

// path returns the path of a place, relative to the data directory.
func (t *Tree) path(p place) string {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.pathLocked(p)
}

// classOf is what the reading of a file counts as.
type classOf struct{ *lookups.Class }

// ReadFromStart says that a user's ring has read the first bytes of the file.
func (f *File) ReadFromStart(uid uint32) {
	of := f.of
	c := of.class.Load()
	if c == nil || c.Gone() {
		c = &classOf{of.tree.classOf(of.node, uid)}
		of.class.Store(c)
	}
	c.FromStart()
}

func (t *Tree) classOf(n *node, uid uint32) *lookups.Class {
	if t.lookups == nil {
		return nil
	}
	t.mu.RLock()
	p := n.place
	t.mu.RUnlock()
	if p.parent == nil || p.name == "" {
		return nil
	}
	return t.lookups.ClassOf(t.path(p), uid)
}

// looked is what is known of the reading through a handle.
type looked struct {
	class  *lookups.Class
	rings  uint64 // openFile.rings when it was opened
	unseen bool   // the kernel reads without the daemon
	read   atomic.Bool
}

// begin is called when a client has opened the file. What it is called then decides: it may be renamed once it is written.
func (l *looked) begin(h *Handle, uid uint32) {
	if h.access == unix.O_WRONLY {
		return
	}
	l.rings = h.file.of.rings.Load()
	l.class = h.file.of.tree.classOf(h.file.of.node, uid)
}

// end counts what was read through the handle, unless a ring has used the file meanwhile: then what the ring read counts.
func (l *looked) end(h *Handle) {
	if l.class != nil && (l.unseen || l.read.Load()) && l.rings == h.file.of.rings.Load() {
		l.class.Opened()
	}
}
