package tree

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
)

// direction is what a request does with the bytes of a file.
type direction int

const (
	forReading direction = iota
	forWriting
)

// directions is a set of directions.
type directions [2]bool

// openFile is the state of a node whose bytes are in use: descriptors, at most one
// for each access mode, and who may use them. All I/O has explicit offsets, so
// handles and rings share descriptors.
type openFile struct {
	node *node
	tree *Tree

	mu       sync.Mutex
	dead     bool                           // closed; look at node.open again
	handles  int                            // open files of the mount
	users    int                            // references to files; while handles > 0, files without any may stay open
	files    [3]*File                       // by unix.O_ACCMODE
	told     bool                           // Options.Usage knows that rings use it
	sums     atomic.Pointer[integrity.File] // nil until they are needed, see File.Sums
	grants   []grant
	verdicts map[verdictKey]verdict
	epoch    int // counts changes of mode and owner: older verdicts are void

	cached     atomic.Bool // written through the page cache since Handle.Publish, see Sharing
	publishing sync.Mutex  // who finds cached false knows that it is done

	// plainUntil is the time, on the tree's clock, until which the file is taken to have no
	// set-id bits that a write would clear.
	plainUntil atomic.Int64

	inode     atomic.Pointer[unix.FileHandle] // see Handle.State
	directory atomic.Pointer[string]          // see File.Directory; nil until it is asked for
	class     atomic.Pointer[classOf]
	rings     atomic.Uint64 // how often rings have acquired it
}

// grant counts the open files of a holder that cover a direction.
type grant struct {
	holder
	count [2]int // by direction
}

// holder is a user that has a file open, and may therefore use it. Where oneGroup is set, that
// goes for callers with this gid only: the right to open it may have come from there.
type holder struct {
	uid, gid uint32
	oneGroup bool
}

// verdictKey is a caller, with the process that its groups come from, and what it wants.
type verdictKey struct {
	caller cred.Caller
	dir    direction
}

// verdict is the kernel's decision at the time of a value of Tree.rights.
type verdict struct {
	err    error
	rights uint64
}

// File is one descriptor of an inode, shared by all users of its access mode.
type File struct {
	of     *openFile
	fd     int
	access int
	uid    uint32 // whom it is charged to, if it is one of Tree.spare
	refs   int    // guarded by of.mu
	kept   bool   // it is one of Tree.spare; guarded by of.mu

	// direct is the descriptor opened with O_DIRECT, plus 1; 0: not tried, -1: refused.
	direct   atomic.Int64
	directMu sync.Mutex

	renewal renewal
}

// OnDataDevice reports whether the file is on the data directory's own device rather
// than on one that is mounted below it.
func (f *File) OnDataDevice() bool { return f.of.node.key.dev == f.of.tree.root.key.dev }

// FD returns the descriptor for buffered I/O with explicit offsets, valid until
// Release and opened without O_APPEND.
func (f *File) FD() int { return f.fd }

// DirectFD returns a descriptor of the same file opened with O_DIRECT, valid
// until Release. The first call opens it; ok is false where the backing file system
// refuses, and where the user has too many.
func (f *File) DirectFD() (fd int, ok bool) {
	if v := f.direct.Load(); v != 0 {
		return int(v - 1), v > 0
	}
	f.directMu.Lock()
	defer f.directMu.Unlock()
	if v := f.direct.Load(); v != 0 {
		return int(v - 1), v > 0
	}
	spare := f.of.tree.spare
	if !spare.Take(f.uid, 1) {
		return -1, false
	}
	fd, err := unix.Open(procPath(f.fd), f.access|unix.O_DIRECT|unix.O_CLOEXEC, 0)
	if err != nil {
		spare.Return(f.uid, 1)
		if err == unix.EINVAL {
			f.direct.Store(-1) // any other error may be temporary
		}
		return -1, false
	}
	f.direct.Store(int64(fd) + 1)
	return fd, true
}

// Release ends one use. The descriptors must not be used after it.
func (f *File) Release() {
	f.of.mu.Lock()
	f.of.dropLocked(f)
}

// Written records that bytes were written through the file, but not through the mount.
// When it returns, the kernel has dropped older attributes. Call it before the writer
// learns that the write is complete.
func (f *File) Written() { f.of.tree.written(f.of.node) }

// endLocked unlocks, and closes everything when no user is left.
func (of *openFile) endLocked() {
	if of.handles > 0 || of.users > 0 || of.dead {
		of.mu.Unlock()
		return
	}
	of.dead = true
	of.checkLocked()
	of.node.open.CompareAndSwap(of, nil)
	files := of.files
	of.mu.Unlock()
	if of.told {
		defer of.tree.useEnds(of.node, anyFD(files))()
	}
	of.endSums(anyFD(files))
	for _, f := range files {
		if f != nil {
			f.close()
		}
	}
}

// anyFD returns a descriptor of files, or -1.
func anyFD(files [3]*File) int {
	for _, f := range files {
		if f != nil {
			return f.fd
		}
	}
	return -1
}

// newFile adds fd to the open state as its file with that access mode, opened for a user.
// The caller holds of.mu.
func (t *Tree) newFile(of *openFile, fd, access int, uid uint32) *File {
	f := &File{of: of, fd: fd, access: access, uid: uid}
	of.files[access] = f
	t.opened()
	return f
}

func (f *File) close() {
	t := f.of.tree
	if v := f.direct.Load(); v > 0 {
		unix.Close(int(v - 1))
		t.spare.Return(f.uid, 1)
	}
	unix.Close(f.fd)
	if f.kept {
		t.spare.Return(f.uid, 1)
	}
	t.closed()
}

// useOpen returns the open state of n, locked and alive.
func (t *Tree) useOpen(n *node) *openFile {
	for {
		of := n.open.Load()
		if of == nil {
			of = &openFile{node: n, tree: t}
			if !n.open.CompareAndSwap(nil, of) {
				continue
			}
		}
		of.mu.Lock()
		if !of.dead {
			return of
		}
		of.mu.Unlock()
	}
}

// pinAny returns any open file of n, or nil.
func (n *node) pinAny() *File {
	of := n.open.Load()
	if of == nil {
		return nil
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	if of.dead {
		return nil
	}
	for _, f := range of.files {
		if f != nil {
			return of.useLocked(f)
		}
	}
	return nil
}

func (of *openFile) useLocked(f *File) *File {
	f.refs++
	of.users++
	of.checkLocked()
	return f
}

// coveringLocked returns a file whose access mode covers dir, or nil.
func (of *openFile) coveringLocked(dir direction) *File {
	one := of.files[unix.O_RDONLY]
	if dir == forWriting {
		one = of.files[unix.O_WRONLY]
	}
	if one != nil {
		return one
	}
	return of.files[unix.O_RDWR]
}

func accessFor(dir direction) int {
	if dir == forWriting {
		return unix.O_WRONLY
	}
	return unix.O_RDONLY
}

// file returns a file of n that covers dir, with the daemon's rights.
func (t *Tree) file(n *node, dir direction) (*File, error) {
	of := t.useOpen(n)
	if f := of.coveringLocked(dir); f != nil {
		of.useLocked(f)
		of.mu.Unlock()
		return f, nil
	}
	return t.openLocked(of, accessFor(dir), nil, ownUID)
}

// ownUID is charged for what the tree opens for itself. No user has it.
const ownUID = ^uint32(0)

// openLocked returns the file with exactly that access mode. It opens it where needed,
// as c, or with the daemon's rights if c is nil. It is opened for the user uid. It unlocks
// the open state.
func (t *Tree) openLocked(of *openFile, access int, c *cred.Caller, uid uint32) (*File, error) {
	if f := of.files[access]; f != nil && c == nil {
		of.useLocked(f)
		of.mu.Unlock()
		return f, nil
	}
	// Keep the state alive while it is unlocked for the system calls.
	of.users++
	var twin *File
	for _, f := range of.files {
		if f != nil {
			twin = of.useLocked(f)
			break
		}
	}
	of.mu.Unlock()

	fd, err := t.openBytes(of.node, access, twin, c)

	if twin != nil {
		twin.Release()
	}
	of.mu.Lock()
	of.users--
	if err != nil {
		of.endLocked()
		return nil, err
	}
	f := of.files[access]
	if f == nil {
		f = t.newFile(of, fd, access, uid)
		fd = -1
	}
	of.useLocked(f)
	of.mu.Unlock()
	if fd >= 0 {
		unix.Close(fd)
	}
	return f, nil
}

// openBytes opens n for reading or writing. twin is an open file of n or nil; it stays
// open during the call.
func (t *Tree) openBytes(n *node, access int, twin *File, c *cred.Caller) (int, error) {
	// O_NONBLOCK: another user may put a fifo in the file's place.
	flags := access | unix.O_NONBLOCK
	reopen := func() (fd int, err error) {
		open := func() error {
			fd, err = openPatiently(func() (int, error) {
				return unix.Open(procPath(twin.fd), flags|unix.O_CLOEXEC, 0)
			})
			return err
		}
		if c == nil {
			err = open()
		} else {
			err = cred.RunAs(*c, open)
		}
		return fd, err
	}
	if twin != nil && c == nil {
		if fd, err := reopen(); err == nil || !t.sharing.Uncached || !broken(err) {
			return fd, err
		}
	}
	fd, _, err := t.openNode(n, flags, c)
	if err != nil && twin != nil && mayHaveMoved(err) {
		// No name leads to it any more; the inode's own mode decides.
		return reopen()
	}
	return fd, err
}

func (of *openFile) grantLocked(who holder, granted directions, by int) {
	if granted == (directions{}) {
		return
	}
	i := 0
	for i < len(of.grants) && of.grants[i].holder != who {
		i++
	}
	if i == len(of.grants) {
		of.grants = append(of.grants, grant{holder: who})
	}
	g := &of.grants[i]
	for dir, yes := range granted {
		if yes {
			g.count[dir] += by
		}
	}
	if g.count == [2]int{} {
		of.grants[i] = of.grants[len(of.grants)-1]
		of.grants = of.grants[:len(of.grants)-1]
	}
}

func (of *openFile) grantedLocked(c cred.Caller, dir direction) bool {
	for i := range of.grants {
		if g := &of.grants[i]; g.uid == c.UID && (!g.oneGroup || g.gid == c.GID) && g.count[dir] > 0 {
			return true
		}
	}
	return false
}

// rightsChanged voids what is remembered about who may use n, or files below it.
func (t *Tree) rightsChanged(n *node) {
	if n.directory() {
		t.rights.Add(1)
		return
	}
	if of := n.open.Load(); of != nil {
		of.mu.Lock()
		clear(of.verdicts)
		of.epoch++
		of.plainUntil.Store(0)
		of.mu.Unlock()
	}
}
