package usrbio

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// ID names an iov to the daemon and to other processes.
type ID [16]byte

// ParseID reads the canonical form, 8-4-4-4-12 hexadecimal digits.
func ParseID(s string) (ID, error) {
	u, ok := wire.ParseUUID(s)
	if !ok {
		return ID{}, fmt.Errorf("usrbio: %q is no id: %w", s, syscall.EINVAL)
	}
	return ID(u), nil
}

// String is the canonical form.
func (id ID) String() string { return wire.UUID(id).String() }

// IovOptions says how an iov is made. The zero value is right for most.
type IovOptions struct {
	// BlockBytes cuts the iov into blocks that no request may cross. 0: one
	// block. A real 3FS registers each block with its network cards by itself.
	BlockBytes int64

	// NUMANode binds the memory to a node; nil leaves it to the kernel.
	NUMANode *int

	// Reserve takes all memory at once, so that a full /dev/shm is an error here
	// and not a fault (SIGBUS) at the first touch of a page. It costs what
	// zeroing the memory costs. Without it only the free space is looked at.
	Reserve bool
}

// Iov is shared memory for the data of requests. Its registration and, where
// NewIov made it, its name in /dev/shm go when it is closed.
type Iov struct {
	m          *Mount
	id         ID
	link       string // name under 3fs-virt/iovs
	blockBytes int64
	mem        *shm.Mapping
	sizeBytes  int64
	closed     atomic.Bool
	once       sync.Once

	registered bool        // the link is ours to unlink
	created    bool        // the object is ours
	named      atomic.Bool // it still has its name
	object     string
}

// NewIov makes an iov of zero bytes. Memory is taken page by page as it is
// touched; see IovOptions.Reserve. ENOSPC means that /dev/shm is too small, in
// a container often a matter of its shm size.
func (m *Mount) NewIov(sizeBytes int64, o IovOptions) (*Iov, error) {
	op := fmt.Sprintf("new iov of %d bytes", sizeBytes)
	if sizeBytes <= 0 {
		return nil, explain(op, syscall.EINVAL)
	}
	if free, err := shm.FreeBytes(); err == nil && sizeBytes > free {
		return nil, explain(op, fmt.Errorf("%s has %d bytes left: %w", shm.Dir, free, syscall.ENOSPC))
	}
	object := objectName()
	mem, err := shm.Create(object, sizeBytes, 0o600)
	if err != nil {
		return nil, explain(op, err)
	}
	v, err := m.register(mem, object, o)
	if err != nil {
		mem.Unmap()
		shm.Remove(object)
		return nil, explain(op, err)
	}
	v.created = true
	v.named.Store(true)
	return m.keep(v)
}

// RegisterIov makes an iov of an object that exists in /dev/shm, all of it; name
// has no slash. The object's name stays the caller's to remove, at any time
// from now on. The object must not be made smaller while the iov is open.
func (m *Mount) RegisterIov(name string, o IovOptions) (*Iov, error) {
	op := "register iov " + name
	mem, err := shm.Open(name)
	if err != nil {
		return nil, explain(op, err)
	}
	v, err := m.register(mem, name, o)
	if err != nil {
		mem.Unmap()
		return nil, explain(op, err)
	}
	return m.keep(v)
}

// OpenIov maps an iov that another process of the same user has registered and
// whose object still has its name. o.BlockBytes must be the one it was made
// with. The registration stays the other process's: it ends with it.
func (m *Mount) OpenIov(id ID, o IovOptions) (*Iov, error) {
	op := "open iov " + id.String()
	link := wire.Link{ID: wire.UUID(id), BlockBytes: o.BlockBytes}.Name()
	target, err := m.desk.readlink(link)
	if err != nil {
		return nil, explain(op, err)
	}
	name, ok := strings.CutPrefix(target, shm.Dir+"/")
	if !ok || name == "" || strings.Contains(name, "/") {
		return nil, explain(op, fmt.Errorf("it is at %s: %w", target, syscall.EIO))
	}
	mem, err := shm.Open(name)
	if err != nil {
		return nil, explain(op, err)
	}
	return m.keep(&Iov{m: m, id: id, link: link, blockBytes: o.BlockBytes, mem: mem, sizeBytes: mem.Len(), object: name})
}

// register prepares the memory and tells the daemon of it.
func (m *Mount) register(mem *shm.Mapping, object string, o IovOptions) (*Iov, error) {
	if o.BlockBytes < 0 || o.BlockBytes > mem.Len() {
		return nil, fmt.Errorf("blocks of %d bytes: %w", o.BlockBytes, syscall.EINVAL)
	}
	if o.NUMANode != nil { // before memory is taken: pages stay where they are
		if err := mem.Bind(*o.NUMANode); err != nil {
			return nil, fmt.Errorf("bind to node %d: %w", *o.NUMANode, err)
		}
	}
	if o.Reserve {
		if err := mem.Reserve(); err != nil {
			return nil, fmt.Errorf("reserve: %w", err)
		}
	}
	id := wire.NewUUID()
	link := wire.Link{ID: id, BlockBytes: o.BlockBytes}.Name()
	if err := m.desk.link(filepath.Join(shm.Dir, object), link); err != nil {
		return nil, err
	}
	return &Iov{m: m, id: ID(id), link: link, blockBytes: o.BlockBytes, mem: mem, sizeBytes: mem.Len(), registered: true, object: object}, nil
}

// keep hands a finished iov over to its mount and to the caller.
func (m *Mount) keep(v *Iov) (*Iov, error) {
	if err := adopt(m, &m.iovs, v); err != nil {
		v.release()
		return nil, err
	}
	return v, nil
}

// ID is the iov's name to the daemon; OpenIov takes it.
func (v *Iov) ID() ID { return v.id }

// Size is the iov's size in bytes.
func (v *Iov) Size() int64 { return v.sizeBytes }

// Bytes is the memory itself, valid until Close: touching it later crashes the
// program, and so does touching it after somebody has made the object smaller,
// which needs its name (see Unlink) and its owner's rights.
func (v *Iov) Bytes() []byte {
	if v.closed.Load() {
		return nil
	}
	return v.mem.Bytes()
}

// Unlink takes the object's name in /dev/shm away early: nobody can open it any
// more, and it cannot be left behind if this process is killed. The iov works
// on. EINVAL for an iov whose object NewIov has not made.
func (v *Iov) Unlink() error {
	if !v.created || v.closed.Load() {
		return explain("unlink iov", syscall.EINVAL)
	}
	if !v.named.Swap(false) {
		return nil
	}
	return shm.Remove(v.object)
}

// Close ends the registration and unmaps the memory. Requests in flight go on
// against the daemon's own mapping and harm nobody, but what they read is lost.
// Closing twice is harmless.
func (v *Iov) Close() (err error) {
	v.once.Do(func() {
		err = v.release()
		disown(v.m, &v.m.iovs, v) // last: m's Close must not overtake this one
	})
	return err
}

func (v *Iov) release() error {
	v.closed.Store(true)
	var err error
	if v.registered {
		err = forget("close iov", v.m.desk.unlink(v.link))
	}
	if v.named.Swap(false) {
		shm.Remove(v.object)
	}
	v.mem.Unmap()
	return err
}

// objectName is one that upstream's cleanup scripts know.
func objectName() string { return "hf3fs-iov-" + wire.NewUUID().String() }
