package usrbio

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/shm"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// ID names an iov, for the daemon and for other processes.
type ID [16]byte

// ParseID parses the canonical form, 8-4-4-4-12 hexadecimal digits.
func ParseID(s string) (ID, error) {
	u, ok := wire.ParseUUID(s)
	if !ok {
		return ID{}, fmt.Errorf("usrbio: parse iov id %q: want 8-4-4-4-12 hexadecimal digits: %w", s, syscall.EINVAL)
	}
	return ID(u), nil
}

// String returns the canonical form.
func (id ID) String() string { return wire.UUID(id).String() }

// IovOptions are the options of an iov. The zero value suits most programs.
type IovOptions struct {
	// BlockBytes divides the iov into blocks, which no request may cross. 0: one
	// block. A real 3FS registers each block separately with its network cards.
	BlockBytes int64

	// NUMANode binds the memory to a node; nil leaves it to the kernel.
	NUMANode *int

	// Reserve allocates all memory at once, so that a full /dev/shm is an error
	// here and not a fault (SIGBUS) at the first touch of a page. It takes as long
	// as zeroing the memory. Without it, only the free space is checked.
	Reserve bool
}

// Iov is shared memory for the data of requests. Close removes its registration
// and, if NewIov made it, its name in /dev/shm.
type Iov struct {
	m          *Mount
	id         ID
	link       string // name under 3fs-virt/iovs
	blockBytes int64
	mem        *shm.Mapping
	sizeBytes  int64
	closed     atomic.Bool
	closing    once
	inFlight   atomic.Int64 // requests on it; only in builds that assert invariants

	registered bool        // Close removes the link
	created    bool        // NewIov made the object
	named      atomic.Bool // the object that NewIov made still has its name
	object     string
}

// NewIov makes an iov of sizeBytes zero bytes. Memory is allocated page by page as
// it is touched; see IovOptions.Reserve. ENOSPC means that /dev/shm is too small;
// a container has a setting for its size. If the daemon does not answer, the error
// is ctx.Err() or, after 30 seconds, ETIMEDOUT.
func (m *Mount) NewIov(ctx context.Context, sizeBytes int64, o IovOptions) (*Iov, error) {
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
	v, err := m.register(ctx, mem, object, o)
	if err != nil {
		mem.Unmap()
		shm.Remove(object)
		return nil, explain(op, err)
	}
	v.created = true
	v.named.Store(true)
	return m.keep(ctx, v)
}

// RegisterIov makes an iov of an existing object in /dev/shm, all of it; name has
// no slash. The caller removes the object's name, at any time from now on. The
// object must not be made smaller while the iov is open. If the daemon does not
// answer, the error is that of NewIov.
func (m *Mount) RegisterIov(ctx context.Context, name string, o IovOptions) (*Iov, error) {
	op := "register iov " + name
	mem, err := shm.Open(name)
	if err != nil {
		return nil, explain(op, err)
	}
	v, err := m.register(ctx, mem, name, o)
	if err != nil {
		mem.Unmap()
		return nil, explain(op, err)
	}
	return m.keep(ctx, v)
}

// OpenIov maps an iov that another process of the same user has registered and
// whose object still has its name. o.BlockBytes must be the same as in that
// process. The registration belongs to that process and ends with it. If the daemon
// does not answer, the error is that of NewIov.
func (m *Mount) OpenIov(ctx context.Context, id ID, o IovOptions) (*Iov, error) {
	op := "open iov " + id.String()
	link := wire.Link{ID: wire.UUID(id), BlockBytes: o.BlockBytes}.Name()
	target, err := m.registrar.readlink(ctx, link)
	if err != nil {
		return nil, explain(op, err)
	}
	name, ok := strings.CutPrefix(target, shm.Dir+"/")
	if !ok || name == "" || strings.Contains(name, "/") {
		return nil, explain(op, fmt.Errorf("its link points to %s: %w", target, syscall.EIO))
	}
	mem, err := shm.Open(name)
	if err != nil {
		return nil, explain(op, err)
	}
	return m.keep(ctx, &Iov{m: m, id: id, link: link, blockBytes: o.BlockBytes, mem: mem, sizeBytes: mem.Len(), object: name})
}

// AdoptIov moves the memory of v, with its content and ID, to m: after a restart of the
// daemon, m is a new Mount and v an iov of the one before. v is closed. It must have been
// made by NewIov or RegisterIov, and its object must still have its name (ENOENT). After
// another error v is as it was.
func (m *Mount) AdoptIov(ctx context.Context, v *Iov) (*Iov, error) {
	op := "adopt iov " + v.id.String()
	switch {
	case v.m == m || !v.registered || v.closed.Load():
		return nil, explain(op, syscall.EINVAL)
	case v.created && !v.named.Load():
		return nil, explain(op, fmt.Errorf("its object was unlinked: %w", syscall.ENOENT))
	}
	target := filepath.Join(shm.Dir, v.object)
	err := m.registrar.link(ctx, target, v.link)
	if errors.Is(err, syscall.EEXIST) { // the daemon has taken it over from the one before
		if has, bad := m.registrar.readlink(ctx, v.link); bad == nil && has == target {
			err = nil
		}
	}
	if err != nil {
		return nil, explain(op, err)
	}
	n := &Iov{m: m, id: v.id, link: v.link, blockBytes: v.blockBytes, mem: v.mem, sizeBytes: v.sizeBytes,
		registered: true, created: v.created, object: v.object}
	moved := false
	err = v.closing.do(ctx, func() error {
		v.closed.Store(true)
		n.named.Store(v.named.Swap(false))
		_ = v.m.registrar.unlinkHere(ctx, v.link) // usually that daemon is gone
		disown(v.m, &v.m.iovs, v)
		moved = true
		return nil
	})
	if !moved {
		_ = m.registrar.unlink(ctx, v.link)
		if err == nil {
			err = os.ErrClosed
		}
		return nil, explain(op, err)
	}
	return m.keep(ctx, n)
}

// register prepares the memory and registers it with the daemon.
func (m *Mount) register(ctx context.Context, mem *shm.Mapping, object string, o IovOptions) (*Iov, error) {
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
	if err := m.registrar.link(ctx, filepath.Join(shm.Dir, object), link); err != nil {
		return nil, err
	}
	return &Iov{m: m, id: ID(id), link: link, blockBytes: o.BlockBytes, mem: mem, sizeBytes: mem.Len(), registered: true, object: object}, nil
}

// keep adds a finished iov to its mount.
func (m *Mount) keep(ctx context.Context, v *Iov) (*Iov, error) {
	if err := adopt(m, &m.iovs, v); err != nil {
		_ = v.release(ctx) // err is the first error
		return nil, err
	}
	return v, nil
}

// ID returns the name by which the daemon knows the iov; OpenIov takes it.
func (v *Iov) ID() ID { return v.id }

// Size returns the iov's size in bytes.
func (v *Iov) Size() int64 { return v.sizeBytes }

// Bytes returns the memory itself, valid until Close. Touching it later crashes
// the program. So does touching it after another process has made the object
// smaller; that process needs the object's name (see Unlink) and its owner's rights.
func (v *Iov) Bytes() []byte {
	if v.closed.Load() {
		return nil
	}
	return v.mem.Bytes()
}

// Unlink removes the object's name from /dev/shm early: no process can open it any
// more, and nothing is left behind if this process is killed. The iov keeps
// working. The error is EINVAL for an iov that NewIov has not made.
func (v *Iov) Unlink() error {
	if !v.created || v.closed.Load() {
		return explain("unlink iov", syscall.EINVAL)
	}
	if !v.named.Swap(false) {
		return nil
	}
	return shm.Remove(v.object)
}

// Close ends the registration and unmaps the memory. Requests in flight continue on
// the daemon's own mapping and do no harm, but what they read is lost. ctx bounds
// only the wait for the daemon, as with Mount.Close. Closing twice is harmless.
func (v *Iov) Close(ctx context.Context) error {
	return v.closing.do(ctx, func() error {
		err := v.release(ctx)
		disown(v.m, &v.m.iovs, v) // last: Mount.Close must not overtake this one
		return err
	})
}

func (v *Iov) release(ctx context.Context) error {
	v.closed.Store(true)
	var err error
	if v.registered {
		err = removed("close iov", v.m.registrar.unlink(ctx, v.link))
	}
	if v.named.Swap(false) {
		shm.Remove(v.object)
	}
	v.mem.Unmap()
	return err
}

// hold counts the requests in flight on v, which may be nil in tests.
func (v *Iov) hold(n int64) {
	if v == nil {
		return
	}
	left := v.inFlight.Add(n)
	invariants.Check(left >= 0, "iov %v: %d requests in flight", v.id, left)
}

// objectName returns a new name that upstream's cleanup scripts recognise.
func objectName() string { return "hf3fs-iov-" + wire.NewUUID().String() }
