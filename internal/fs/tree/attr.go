package tree

import (
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// hotPeriod is the time after a ring write during which the kernel gets no attributes
// to keep, so that a stream of ring writes costs one invalidation per period.
const hotPeriod = time.Second

// Attr is what a client sees of an inode. Directories have size 0 and one link, as 3FS shows
// them, or none once they are removed; find(1) reads one link as "count them yourself".
type Attr struct {
	Ino, Size, Blocks   uint64 // Blocks of 512 bytes, as the data directory counts them
	Mode, Nlink         uint32
	UID, GID            uint32
	Atime, Mtime, Ctime Time
}

// Time is a point in time of the backing file system.
type Time struct {
	Sec  int64
	Nsec uint32
}

// Entry is a node with its attributes, and how long the kernel may keep them. New says that
// the kernel knew no such inode before.
type Entry struct {
	ID   uint64
	Attr Attr
	Keep time.Duration
	New  bool
}

func attrOf(n *node, st *unix.Statx_t) Attr {
	a := Attr{
		Ino: n.ino, Size: st.Size, Blocks: st.Blocks,
		Mode: uint32(st.Mode), Nlink: st.Nlink, UID: st.Uid, GID: st.Gid,
		Atime: timeOf(st.Atime), Mtime: timeOf(st.Mtime), Ctime: timeOf(st.Ctime),
	}
	if n.directory() {
		a.Size, a.Nlink = 0, min(st.Nlink, 1)
	}
	return a
}

func timeOf(t unix.StatxTimestamp) Time { return Time{Sec: t.Sec, Nsec: t.Nsec} }

// entry returns the reply about n, whose status was read at or after began.
func (t *Tree) entry(n *node, st *unix.Statx_t, began int64, keep time.Duration) Entry {
	if mode := uint32(st.Mode); n.regular() && withoutSetID(mode) != mode {
		keep = 0 // a write clears bits, and the kernel does not look for that
	}
	return Entry{ID: n.id, Attr: attrOf(n, st), Keep: t.mayKeep(n, began, keep)}
}

// momentary is entry for replies that the kernel applies even if it has been told since
// to forget the attributes. It must not keep those of files.
func (t *Tree) momentary(n *node, st *unix.Statx_t, began int64, keep time.Duration) Entry {
	return t.entry(n, st, began, momentaryKeep(n, keep))
}

func momentaryKeep(n *node, keep time.Duration) time.Duration {
	if n.regular() {
		return 0
	}
	return keep
}

// mayKeep records that the kernel is about to get attributes of n, read after began, and
// returns how long it may keep them, at most keep. mayKeep and written cannot miss each
// other: either written sees cached and has the kernel forget, or mayKeep sees hotUntil
// and gives nothing to keep.
func (t *Tree) mayKeep(n *node, began int64, keep time.Duration) time.Duration {
	if keep <= 0 || n.hotUntil.Load() > began {
		return 0
	}
	n.cached.Add(1)
	if n.hotUntil.Load() > began {
		return 0
	}
	return keep
}

// written invalidates the attributes that the kernel may hold of n, before it returns.
// Concurrent writers each tell the kernel, until one of those calls has returned: no
// writer may return before the kernel knows.
func (t *Tree) written(n *node) {
	now := t.now()
	// It is enough to renew the period from time to time; writers of a shared file
	// then do not contend for the cache line.
	if until := n.hotUntil.Load(); until < now+int64(hotPeriod)*3/4 {
		n.hotUntil.CompareAndSwap(until, now+int64(hotPeriod)) // else another has
	}
	invalidated, cached := n.invalidated.Load(), n.cached.Load()
	invariants.Check(int32(cached-invalidated) >= 0, "node %d: the kernel forgot attributes %d times and got them %d times", n.id, invalidated, cached)
	paged := n.paged.Load()
	if invalidated == cached && !paged || t.early.note(n) {
		return
	}
	(*t.invalidate.Load())(n.id, paged)
	for int32(cached-invalidated) > 0 && !n.invalidated.CompareAndSwap(invalidated, cached) {
		invalidated = n.invalidated.Load()
	}
}

// Getattr returns the attributes of a node. It uses an open descriptor if there is one,
// so it works for unlinked files, too.
func (t *Tree) Getattr(id uint64, keep time.Duration) (Entry, error) {
	n, err := t.node(id)
	if err != nil {
		return Entry{}, err
	}
	if keep > 0 {
		t.settle(n)
	}
	began := t.now()
	st, err := t.stat(n)
	if err != nil {
		return Entry{}, err
	}
	return t.entry(n, &st, began, keep), nil
}

func (t *Tree) stat(n *node) (st unix.Statx_t, err error) {
	if n == t.root {
		return statFD(t.rootFD)
	}
	err = t.onInode(n, func(fd int, known *unix.Statx_t) error {
		if known != nil {
			st = *known
			return nil
		}
		st, err = statFD(fd)
		return err
	})
	return st, err
}

// onInode calls fn with a descriptor of n, which may be O_PATH, and with its status if
// that was read already.
func (t *Tree) onInode(n *node, fn func(fd int, known *unix.Statx_t) error) error {
	if f := n.pinAny(); f != nil {
		defer f.Release()
		return f.again(func() error { return fn(f.fd, nil) })
	}
	if n == t.root {
		return fn(t.rootFD, nil)
	}
	fd, st, err := t.openNode(n, unix.O_PATH, nil)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return fn(fd, &st)
}

// Change says which attributes Setattr sets: those that are not nil.
type Change struct {
	Size         *uint64
	Mode         *uint32
	UID, GID     *uint32
	Atime, Mtime *unix.Timespec // Nsec may be UTIME_NOW
	ClearSetID   bool           // the change clears set-id bits of a file
}

// Setattr changes attributes. The caller has checked the client's rights. Owner and mode of
// the root are the data directory's.
func (t *Tree) Setattr(id uint64, c Change, keep time.Duration, proceed ...Proceed) (Entry, error) {
	n, err := t.node(id)
	if err != nil {
		return Entry{}, err
	}
	began := t.now()
	if c.Size != nil {
		if err := t.truncate(n, *c.Size, proceed); err != nil {
			return Entry{}, err
		}
	}
	var st unix.Statx_t
	err = t.onInode(n, func(fd int, _ *unix.Statx_t) error {
		if err := ask(proceed); err != nil {
			return err
		}
		if err := t.change(n, fd, c); err != nil {
			return err
		}
		st, err = statFD(fd)
		return err
	})
	if c.Mode != nil || c.UID != nil || c.GID != nil {
		t.rightsChanged(n)
	}
	if err != nil {
		return Entry{}, err
	}
	return t.momentary(n, &st, began, keep), nil
}

func change(fd int, c Change) error {
	if c.UID != nil || c.GID != nil {
		// Owner before mode: changing the owner clears set-id bits.
		if err := unix.Fchownat(fd, "", idOrKeep(c.UID), idOrKeep(c.GID), unix.AT_EMPTY_PATH); err != nil {
			return err
		}
	}
	if c.ClearSetID && c.Mode == nil {
		if err := clearSetID(fd); err != nil {
			return err
		}
	}
	if c.Mode != nil {
		if err := unix.Fchmodat(unix.AT_FDCWD, procPath(fd), *c.Mode&0o7777, 0); err != nil {
			return err
		}
	}
	if c.Atime != nil || c.Mtime != nil {
		times := [2]unix.Timespec{timeOrKeep(c.Atime), timeOrKeep(c.Mtime)}
		return unix.UtimesNanoAt(unix.AT_FDCWD, procPath(fd), times[:], 0)
	}
	return nil
}

func idOrKeep(id *uint32) int {
	if id == nil {
		return -1
	}
	return int(*id)
}

func timeOrKeep(t *unix.Timespec) unix.Timespec {
	if t == nil {
		return unix.Timespec{Nsec: unix.UTIME_OMIT}
	}
	return *t
}

func (t *Tree) truncate(n *node, size uint64, proceed []Proceed) error {
	if n.directory() {
		return unix.EISDIR
	}
	if !n.regular() {
		return unix.EINVAL
	}
	if size > 1<<63-1 {
		return unix.EFBIG
	}
	f, err := t.file(n, forWriting)
	if err != nil {
		return err
	}
	defer f.Release()
	defer f.Settle(0)
	return f.again(func() error {
		return f.Sums().Change(f.fd, after(proceed, func() error { return unix.Ftruncate(f.fd, int64(size)) }))
	})
}

// Readlink returns the target of a symbolic link.
func (t *Tree) Readlink(id uint64) (string, error) {
	n, err := t.node(id)
	if err != nil {
		return "", err
	}
	fd, _, err := t.openNode(n, unix.O_PATH, nil)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	target := make([]byte, unix.PathMax)
	size, err := unix.Readlinkat(fd, "", target)
	if err != nil {
		return "", err
	}
	return string(target[:size]), nil
}

// Statfs returns the backing file system's figures.
func (t *Tree) Statfs() (unix.Statfs_t, error) {
	var st unix.Statfs_t
	err := unix.Fstatfs(t.rootFD, &st)
	return st, err
}
