package tree

import (
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/lookups"
)

// lookedUp tells Options.Lookups how the look-up of an entry ended.
func (t *Tree) lookedUp(p place, err error) {
	switch {
	case t.lookups == nil:
	case err == unix.ENOENT:
		t.lookups.Missing(t.path(p))
	case err == nil && p.name[0] == '.':
		t.lookups.Found(t.path(p))
	}
}

// making tells Options.Lookups that an entry is about to be made, see lookups.Counter.Making.
func (t *Tree) making(p place, fresh bool) {
	if t.lookups != nil {
		t.lookups.Making(t.path(p), fresh)
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

// ReadFromStart says that a ring has read the first bytes of the file.
func (f *File) ReadFromStart() {
	of := f.of
	c := of.class.Load()
	if c == nil {
		c = &classOf{of.tree.classOf(of.node)}
		of.class.Store(c)
	}
	c.FromStart()
}

func (t *Tree) classOf(n *node) *lookups.Class {
	if t.lookups == nil {
		return nil
	}
	t.mu.RLock()
	p := n.place
	t.mu.RUnlock()
	if p.parent == nil || p.name == "" {
		return nil
	}
	return t.lookups.ClassOf(t.path(p))
}

// looked is what is known of the reading through a handle.
type looked struct {
	class  *lookups.Class
	rings  uint64 // openFile.rings when it was opened
	unseen bool   // the kernel reads without the daemon
	read   atomic.Bool
}

// begin is called when a client has opened the file. What it is called then decides: it may be renamed once it is written.
func (l *looked) begin(h *Handle) {
	if h.access == unix.O_WRONLY {
		return
	}
	l.rings = h.file.of.rings.Load()
	l.class = h.file.of.tree.classOf(h.file.of.node)
}

// end counts what was read through the handle, unless a ring has used the file meanwhile: then what the ring read counts.
func (l *looked) end(h *Handle) {
	if l.class != nil && (l.unseen || l.read.Load()) && l.rings == h.file.of.rings.Load() {
		l.class.Opened()
	}
}
