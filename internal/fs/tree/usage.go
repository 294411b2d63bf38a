package tree

import (
	"math"
	"time"

	"golang.org/x/sys/unix"
)

// FileKey names an inode of the data directory's file system: statx's device, its major number
// in the upper 32 bits, and inode number.
type FileKey = struct{ Dev, Ino uint64 }

// Usage is told how the files and directories of a tree come, grow, are used and go, and says
// when there is room for more. It hears of regular files and directories on the data
// directory's own device, and of nothing in StateName. What a file takes is its blocks of
// 512 bytes, as fstat reports them.
//
// Its methods may be called concurrently. They must not call back into the tree, and all but
// Reserve and Move return at once.
type Usage interface {
	// Reserve waits until there is room for n more bytes of a file, or of a directory that
	// gets an entry. After nil the caller ends it with Settle. EAGAIN: there is no room now,
	// and deadline is zero. ENOSPC or EDQUOT: there will be none, or deadline is over. EINTR:
	// cancel was closed.
	Reserve(k FileKey, n int64, deadline time.Time, cancel <-chan struct{}) error
	// Move waits until there is room for a file, or for a directory with all below it, that is about to get the place newName
	// in the directory to, instead of replaced if that is not the zero key. After nil the caller calls end, once
	// it has told of that, or it has failed. Errors are those of Reserve.
	Move(k, to FileKey, newName string, replaced FileKey, deadline time.Time, cancel <-chan struct{}) (end func(), err error)
	// Settle ends a reservation and says what the file takes now. reserved is 0 if it has just
	// changed, blocks512 is negative if nobody knows. Of the calls for one file the later one
	// is the newer. One that was neither Created nor Opened may have been removed.
	Settle(k FileKey, reserved, blocks512 int64)
	// Read says that it was used: bytes of it were read through a ring, or it was opened through
	// the mount.
	Read(k FileKey)
	// Opened says that it is open through the mount, used by rings or about to be removed, until
	// Closed. They nest. name is "" if the file has none.
	Opened(k, dir FileKey, name string)
	// Closed also says what the file takes, as Settle does.
	Closed(k FileKey, blocks512 int64)
	// Created says that there is a new file, or one more name of it.
	Created(k, dir FileKey, name string, isDir bool)
	// Removed says that a name is gone, while its inode is still held. last: no other is
	// left, and once nobody has it open, it takes nothing. It may be said twice, then with no
	// directory and no name: the place may be another file's.
	Removed(k, dir FileKey, name string, last bool)
	// Renamed says that a file or directory has another place. The one that it replaced was
	// Removed before.
	Renamed(k, from FileKey, oldName string, to FileKey, newName string)
	// SpaceOf returns the size of the space that a directory may take, and how much of it is
	// free: what the directory's limit and those above leave.
	SpaceOf(dir FileKey) (capacityBytes, freeBytes int64, limited bool)
}

const (
	pageBytes = 4096
	// ownBytes is what the file system may need for itself to note where a write lies.
	ownBytes = 2 * pageBytes
	// entryBytes is what a new entry may take: blocks of its directory and one of its own.
	entryBytes = 4 * pageBytes

	// entryPatience bounds how long the making of an entry waits for room, where there is not
	// even that for entries. The kernel holds the directory's lock meanwhile.
	entryPatience = 2 * time.Second
	// renamePatience bounds how long a rename from one directory to another waits for room in all, or a link. The kernel keeps
	// all other such renames in the mount waiting meanwhile, so it is what removing some files takes on a slow disk, and no more.
	renamePatience = 500 * time.Millisecond
	// writePatience is the same for a write through the mount.
	writePatience = 30 * time.Second
)

func keyOf(k identity) FileKey { return FileKey{Dev: k.dev, Ino: k.ino} }

// counts reports whether an inode is one that Options.Usage hears of.
func (t *Tree) counts(k identity) bool {
	return t.usage != nil && (k.dev == t.root.key.dev || t.overlay) && k != t.state
}

// countsKind is counts for an inode of that status.
func (t *Tree) countsKind(st *unix.Statx_t) bool {
	kind := st.Mode & unix.S_IFMT
	return t.usage != nil && (kind == unix.S_IFREG || kind == unix.S_IFDIR) && t.counts(t.identityOf(st))
}

// account says what an inode takes, and ends a reservation for it.
func (t *Tree) account(k identity, reserved int64, stat func() (unix.Statx_t, error)) {
	defer t.accounting.lock(keyOf(k))()
	t.usage.Settle(keyOf(k), reserved, t.blocksOf(k, stat))
}

// blocksOf returns the blocks of an inode, or -1 if stat finds another one or nothing.
func (t *Tree) blocksOf(k identity, stat func() (unix.Statx_t, error)) int64 {
	st, err := stat()
	if err != nil || t.identityOf(&st) != k {
		return -1
	}
	return int64(st.Blocks)
}

func (t *Tree) accountFD(k identity, reserved int64, fd int) {
	t.account(k, reserved, func() (unix.Statx_t, error) { return statFD(fd) })
}

// growDir is inDir for a change that may make the directory larger. It waits for room.
func (t *Tree) growDir(d *node, fn func(fd int) error) error {
	return t.growDirBy(d, time.Now().Add(entryPatience), fn)
}

// growDirBy is growDir that waits until a deadline.
func (t *Tree) growDirBy(d *node, deadline time.Time, fn func(fd int) error) error {
	if !t.counts(d.key) {
		return t.inDir(d, fn)
	}
	k := keyOf(d.key)
	if err := t.usage.Reserve(k, entryBytes, deadline, nil); err != nil {
		return err
	}
	settled := false
	err := t.inDir(d, func(fd int) error {
		err := fn(fd)
		t.accountFD(d.key, entryBytes, fd)
		settled = true
		return err
	})
	if !settled {
		t.usage.Settle(k, entryBytes, -1)
	}
	return err
}

// growBy runs fn, which may make the inode of n take that many more bytes. It waits for room,
// unless fn takes none.
func (t *Tree) growBy(n *node, fd int, bytes int64, fn func() error) error {
	if !t.counts(n.key) {
		return fn()
	}
	if bytes > 0 {
		if err := t.usage.Reserve(keyOf(n.key), bytes, time.Now().Add(entryPatience), nil); err != nil {
			return err
		}
	}
	defer t.accountFD(n.key, bytes, fd)
	return fn()
}

// moveIn runs fn, which gives the inode of st the place newName in the directory to, once there is room for it there.
// The caller is in no move: what makes room is one. replaced is the status of what it replaces, or nil.
func (t *Tree) moveIn(to *node, newName string, st, replaced *unix.Statx_t, deadline time.Time, fn func() error) error {
	if !t.countsKind(st) {
		return fn()
	}
	var instead FileKey
	if replaced != nil && t.countsKind(replaced) {
		instead = keyOf(t.identityOf(replaced))
	}
	end, err := t.usage.Move(keyOf(t.identityOf(st)), keyOf(to.key), newName, instead, deadline, nil)
	if err != nil {
		return err
	}
	defer end()
	return fn()
}

// renameIn is moveIn for a rename, of flags as for renameat2(2). What the rename itself finds wrong costs no room.
func (t *Tree) renameIn(from place, fromFD int, to place, toFD int, flags uint32, deadline time.Time, fn func() error) error {
	if t.usage == nil {
		return fn()
	}
	source, err := statAt(fromFD, from.name)
	if err != nil || from.parent == to.parent && source.Mode&unix.S_IFMT != unix.S_IFDIR && flags != unix.RENAME_EXCHANGE {
		return fn() // as engines do all the time: it was written there
	}
	victim, err := statAt(toFD, to.name)
	switch {
	case err != nil && flags != unix.RENAME_EXCHANGE:
		return t.moveIn(to.parent, to.name, &source, nil, deadline, fn)
	case err != nil, flags == unix.RENAME_NOREPLACE, t.identityOf(&victim) == t.identityOf(&source):
		return fn()
	case flags == unix.RENAME_EXCHANGE:
		return t.moveIn(to.parent, to.name, &source, &victim, deadline, func() error {
			return t.moveIn(from.parent, from.name, &victim, &source, deadline, fn)
		})
	}
	return t.moveIn(to.parent, to.name, &source, &victim, deadline, fn)
}

// created says that name in d is a new file or directory, or one more name of a file. st is its
// status, dir the directory's descriptor.
func (t *Tree) created(d *node, dir int, name string, st *unix.Statx_t) {
	if !t.countsKind(st) {
		return
	}
	k := t.identityOf(st)
	// Locked, so that the last use of a file that had no name does not end it after this.
	defer t.accounting.lock(keyOf(k))()
	t.usage.Created(keyOf(k), keyOf(d.key), name, st.Mode&unix.S_IFMT == unix.S_IFDIR)
	t.usage.Settle(keyOf(k), 0, t.blocksOf(k, func() (unix.Statx_t, error) { return statAt(dir, name) }))
}

// placeOf returns a node's directory and name.
func (t *Tree) placeOf(n *node) (dir FileKey, name string) {
	t.mu.RLock()
	defer t.mu.RUnlock()
	if n.parent == nil {
		return FileKey{}, ""
	}
	return keyOf(n.parent.key), n.name
}

// useBegins says that a use of n begins, which is open as fd.
func (t *Tree) useBegins(n *node, fd int) {
	dir, name := t.placeOf(n)
	t.usage.Opened(keyOf(n.key), dir, name)
	t.accountFD(n.key, 0, fd)
}

// useEnds undoes useBegins. fd is an open descriptor of n, or negative. The caller closes the
// file and then calls closed: only then the blocks of one without a name are free.
func (t *Tree) useEnds(n *node, fd int) (closed func()) {
	k := keyOf(n.key)
	if fd >= 0 {
		unlock := t.accounting.lock(k)
		if st, err := statFD(fd); err == nil {
			t.usage.Settle(k, 0, int64(st.Blocks))
			if st.Nlink == 0 {
				// It never had a name, or lost it while its use began. Where it was there may be another file now.
				t.usage.Removed(k, FileKey{}, "", true)
			}
		}
		unlock()
	}
	return func() { t.usage.Closed(k, -1) }
}

// leaving is an entry that is about to be removed or replaced.
type leaving struct {
	tree *Tree
	key  identity
	dir  FileKey
	name string
	fd   int  // holds the inode, whose number another may get otherwise
	own  bool // fd is to be closed
	file bool // it is in use until then
}

// leaves prepares for the removal of the entry p, whose status is st, in the directory open as
// dir. orphanFD is openLastName's or -1.
func (t *Tree) leaves(p place, dir int, st *unix.Statx_t, orphanFD int) leaving {
	if !t.countsKind(st) {
		return leaving{}
	}
	l := leaving{tree: t, key: t.identityOf(st), dir: t.dirKey(p, dir), name: p.name, fd: orphanFD}
	if l.fd < 0 {
		fd, err := unix.Openat(dir, p.name, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		if err == nil {
			l.fd, l.own = fd, true
		}
	}
	if l.file = l.own && st.Mode&unix.S_IFMT == unix.S_IFREG; l.file {
		t.usage.Opened(keyOf(l.key), l.dir, l.name)
	}
	return l
}

// renamed says that the inode of st has another place. Descriptors are those of the
// directories.
func (t *Tree) renamed(from place, fromFD int, to place, toFD int, st *unix.Statx_t) {
	if !t.countsKind(st) {
		return
	}
	t.usage.Renamed(keyOf(t.identityOf(st)), t.dirKey(from, fromFD), from.name, t.dirKey(to, toFD), to.name)
}

// dirKey returns the directory of p, which is open as fd.
func (t *Tree) dirKey(p place, fd int) FileKey {
	if p.parent != nil {
		return keyOf(p.parent.key)
	}
	st, err := statFD(fd)
	if err != nil {
		return FileKey{}
	}
	return keyOf(t.identityOf(&st))
}

// gone says that the entry was removed.
func (l leaving) gone() {
	if l.tree == nil || l.fd < 0 {
		return
	}
	if st, err := statFD(l.fd); err == nil && l.tree.identityOf(&st) == l.key {
		last := st.Nlink == 0 || st.Mode&unix.S_IFMT == unix.S_IFDIR
		l.tree.usage.Removed(keyOf(l.key), l.dir, l.name, last)
	}
}

func (l leaving) close() {
	if l.own {
		unix.Close(l.fd)
	}
	if l.file {
		l.tree.usage.Closed(keyOf(l.key), -1)
	}
}

// accountDir says what a directory takes whose entries have changed. d is nil for one that the
// kernel does not know.
func (t *Tree) accountDir(d *node, fd int) {
	if t.usage == nil {
		return
	}
	var k identity
	if d != nil {
		k = d.key
	} else if st, err := statFD(fd); err == nil {
		k = t.identityOf(&st)
	}
	if t.counts(k) {
		t.accountFD(k, 0, fd)
	}
}

// Reserve waits for room for n bytes that are to be written at off, or at endOfFile. It returns what Settle is to end. Its errors are those of Usage.Reserve.
func (f *File) Reserve(off, n int64, deadline time.Time, cancel <-chan struct{}) (reserved int64, err error) {
	t, k := f.of.tree, f.of.node.key
	if n == 0 || !t.counts(k) {
		return 0, nil
	}
	// A page more than n has, because it may begin within one.
	want := (n+pageBytes-1)&^(pageBytes-1) + pageBytes + ownBytes
	if err := t.usage.Reserve(keyOf(k), want, time.Time{}, nil); err != unix.EAGAIN {
		return want, err
	}
	return f.reserveGrowth(off, n, deadline, cancel)
}

// reserveGrowth is Reserve for what the file can really grow by.
func (f *File) reserveGrowth(off, n int64, deadline time.Time, cancel <-chan struct{}) (reserved int64, err error) {
	t, k := f.of.tree, f.of.node.key
	st, err := statFD(f.fd)
	if err != nil {
		return 0, err
	}
	if off == endOfFile {
		off = int64(st.Size)
	}
	want := growth(off, n, int64(st.Size), int64(st.Blocks)*512)
	if want == 0 {
		return 0, nil
	}
	return want, t.usage.Reserve(keyOf(k), want, deadline, cancel)
}

// growth returns how much more a file of that size, that takes allocated bytes, can take once n
// bytes at off are allocated. Blocks behind its end count as if they were within.
func growth(off, n, size, allocated int64) int64 {
	first := off &^ (pageBytes - 1)
	last := (off + n + pageBytes - 1) &^ (pageBytes - 1)
	end := max((size+pageBytes-1)&^(pageBytes-1), last)
	holes := min(last-first, end-allocated)
	if holes <= 0 {
		return 0
	}
	return holes + ownBytes
}

// endOfFile is the offset of an append.
const endOfFile = -1

// reserveFallocate is Reserve for a call of fallocate(2). EOPNOTSUPP: it is to allocate blocks
// behind the end of the file.
func (f *File) reserveFallocate(mode uint32, off, length int64, deadline time.Time, cancel <-chan struct{}) (reserved int64, err error) {
	const shrinks = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_COLLAPSE_RANGE
	if !f.of.tree.counts(f.of.node.key) || mode&shrinks != 0 || off < 0 || length <= 0 || off > math.MaxInt64-length-pageBytes {
		return 0, nil
	}
	if mode&unix.FALLOC_FL_KEEP_SIZE != 0 {
		st, err := statFD(f.fd)
		if err != nil {
			return 0, err
		}
		if off+length > int64(st.Size) {
			return 0, unix.EOPNOTSUPP // growth would take these blocks for ones within the file
		}
	}
	return f.reserveGrowth(off, length, deadline, cancel)
}

// Settle ends what Reserve returned, once the bytes are written or will not be.
func (f *File) Settle(reserved int64) {
	if t := f.of.tree; t.counts(f.of.node.key) {
		t.accountFD(f.of.node.key, reserved, f.fd)
	}
}

// HasRead says that a ring has read bytes of the file, or that the mount has opened it.
func (f *File) HasRead() {
	if t := f.of.tree; t.counts(f.of.node.key) {
		t.usage.Read(keyOf(f.of.node.key))
	}
}

// Limited reports whether the tree has a limit, so that every write must be seen.
func (t *Tree) Limited() bool { return t.usage != nil }

// Space returns the size and the free part of the space that a node's directory may take.
func (t *Tree) Space(id uint64) (capacityBytes, freeBytes int64, limited bool) {
	n, err := t.node(id)
	if err != nil || t.usage == nil {
		return 0, 0, false
	}
	dir := keyOf(n.key)
	if !n.directory() {
		dir, _ = t.placeOf(n)
	}
	return t.usage.SpaceOf(dir)
}
