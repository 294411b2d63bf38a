package ringserver

import (
	"slices"
	"sync"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/quota"
	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// entry is one registration: an iov or a ring, never both.
type entry struct {
	controldir.Registration
	link      wire.Link
	id        uint64  // in the state that is kept; never used twice
	inherited bool    // a predecessor has left it
	order     uint64  // of registration
	owner     *owner  // nil where the process cannot be seen from here
	shm       *devShm // that the object is in, held until unmap
	bytes     int64   // size of the object
	object    objectID
	// handleType and handle are by what the kernel finds the object without its name.
	handleType int32
	handle     []byte
	iov        *iov
	ring       *ring
}

// table finds registrations by name, index and buffer id. Its lock is never held
// across a system call.
type table struct {
	max    int
	places *quota.Quota // of max registrations

	mu      sync.RWMutex
	byName  map[string]*entry
	byIndex map[int]*entry
	next    int    // where the search for a free index begins
	orders  uint64 // order of the entry that was added last

	// Requests name buffers by id at a rate of millions a second.
	buffers sync.Map // wire.UUID -> *iov
}

func newTable(max int) *table {
	return &table{max: max, places: quota.New(int64(max)), byName: map[string]*entry{}, byIndex: map[int]*entry{}}
}

// add inserts e. EEXIST: the name is taken. EMFILE: the table, or the user's part of
// it, is full. EPERM: another user has a buffer with that id.
func (t *table) add(e *entry) error {
	t.mu.Lock()
	defer t.unlock()
	return t.addLocked(e, -1)
}

// readd is add for an entry that had an index and an order in the table of a predecessor. EEXIST: the
// index is taken, too.
func (t *table) readd(e *entry, index int, order uint64) error {
	t.mu.Lock()
	defer t.unlock()
	if index >= t.max || t.byIndex[index] != nil {
		return syscall.EEXIST
	}
	t.orders = order - 1
	return t.addLocked(e, index)
}

// addLocked inserts e at an index; -1: at any.
func (t *table) addLocked(e *entry, index int) error {
	if _, ok := t.byName[e.Name]; ok {
		return syscall.EEXIST
	}
	if before := t.buffer(e.link.ID); e.iov != nil && before != nil && before.uid != e.UID {
		return syscall.EPERM
	}
	if !t.places.Take(e.UID, 1) {
		return syscall.EMFILE
	}
	// The index determines the inode number, which the kernel may remember for a while
	// after a registration ended: use the index that has been free the longest.
	if index >= 0 {
		t.next = index
	}
	for t.byIndex[t.next] != nil {
		t.next = (t.next + 1) % t.max
	}
	e.Index = t.next
	t.byIndex[e.Index] = e
	t.next = (t.next + 1) % t.max
	t.orders++
	e.order = t.orders
	t.byName[e.Name] = e
	if e.iov != nil {
		// Two names with the same id: the later one wins (3.3).
		if before, ok := t.buffers.Swap(e.link.ID, e.iov); ok {
			e.iov.shadows = before.(*iov)
		}
	}
	return nil
}

// unlock ends a change that began with mu.Lock.
func (t *table) unlock() {
	if invariants.Enabled {
		t.checkInvariants()
	}
	t.mu.Unlock()
}

// remove removes e and reports whether it was registered.
func (t *table) remove(e *entry) bool {
	t.mu.Lock()
	defer t.unlock()
	if t.byName[e.Name] != e {
		return false
	}
	delete(t.byName, e.Name)
	t.places.Return(e.UID, 1)
	delete(t.byIndex, e.Index)
	if e.iov != nil {
		t.unshadow(e.link.ID, e.iov)
	}
	return true
}

// unshadow removes v from the chain of buffers with the same id.
func (t *table) unshadow(id wire.UUID, v *iov) {
	top, ok := t.buffers.Load(id)
	if !ok {
		return
	}
	if top == v {
		if v.shadows == nil {
			t.buffers.Delete(id)
		} else {
			t.buffers.Store(id, v.shadows)
		}
		return
	}
	for at := top.(*iov); at.shadows != nil; at = at.shadows {
		if at.shadows == v {
			at.shadows = v.shadows
			return
		}
	}
}

// buffer returns the iov with the id of a request, or nil.
func (t *table) buffer(id wire.UUID) *iov {
	v, ok := t.buffers.Load(id)
	if !ok {
		return nil
	}
	return v.(*iov)
}

func (t *table) get(name string) *entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byName[name]
}

func (t *table) at(index int) *entry {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.byIndex[index]
}

// all returns the entries in the order of registration.
func (t *table) all() []*entry { return t.sorted(func(*entry) bool { return true }) }

// sorted returns the entries that are wanted in the order of registration.
func (t *table) sorted(wanted func(*entry) bool) []*entry {
	t.mu.RLock()
	var es []*entry
	for _, e := range t.byName {
		if wanted(e) {
			es = append(es, e)
		}
	}
	t.mu.RUnlock()
	slices.SortFunc(es, func(a, b *entry) int { return int(a.order) - int(b.order) })
	return es
}

// Lookup returns the registration with a name, of any user.
func (s *Server) Lookup(name string) (controldir.Registration, bool) {
	return registration(s.table.get(name))
}

// ByIndex returns the registration with a table index.
func (s *Server) ByIndex(index int) (controldir.Registration, bool) {
	return registration(s.table.at(index))
}

func registration(e *entry) (controldir.Registration, bool) {
	if e == nil {
		return controldir.Registration{}, false
	}
	return e.Registration, true
}

// List returns a user's registrations in the order in which they were made.
func (s *Server) List(uid uint32) []controldir.Registration {
	var rs []controldir.Registration
	for _, e := range s.table.sorted(func(e *entry) bool { return e.UID == uid }) {
		rs = append(rs, e.Registration)
	}
	return rs
}

// DirOpened records that c opened the directory of registrations. The handle keeps
// the registrations of c's process alive after the process has exited (3.7). EMFILE: the
// user has too many handles, or too many processes with handles or registrations.
func (s *Server) DirOpened(c cred.Caller) (handle uint64, err error) {
	return s.owners.dirOpened(c.UID, c.PID)
}

// DirReleased records the last close of such a handle, in whichever process.
func (s *Server) DirReleased(handle uint64) { s.owners.dirReleased(handle) }

// DirsStayOpen says which of a predecessor's handles are open: it may have been killed between a release, or an open, and what
// it has written of it. It is called before DirOpened.
func (s *Server) DirsStayOpen(handles []uint64) {
	for _, h := range s.owners.dirsBut(handles) {
		s.owners.dirReleased(h)
	}
}
