package tree

import (
	"bytes"
	"encoding/binary"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// A directory that is being listed has a buffer of entries. A user may have very many
// directories open, so only so many of the buffers are large.
const (
	largeListingBytes = 32 << 10
	smallListingBytes = 4 << 10
	mostLargeListings = 1024
)

// Dir is a directory opened for listing. It keeps only one buffer of entries, however
// large the directory is, and none before the first and after the last entry. Its positions are those of the backing file system, which
// keeps them valid while entries are created and removed.
type Dir struct {
	tree *Tree
	node *node
	fd   int

	mu   sync.Mutex
	read bool   // some entries were
	next int64  // position after the last entry that was returned
	rest []byte // entries read and not returned yet
	buf  []byte
}

// Dirent is one entry of a listing.
type Dirent struct {
	Name string
	Ino  uint64 // as stat shows it, unless something is mounted on the entry
	Type uint32 // S_IFMT bits, 0 when unknown
	Next int64  // position to continue from
}

// OpenDir opens a directory for listing. The caller closes it.
func (t *Tree) OpenDir(id uint64) (*Dir, error) {
	n, err := t.node(id)
	if err != nil {
		return nil, err
	}
	fd, _, err := t.openNode(n, unix.O_RDONLY|unix.O_DIRECTORY, nil)
	if err != nil {
		return nil, err
	}
	t.opened()
	return &Dir{tree: t, node: n, fd: fd}, nil
}

// Close ends the listing.
func (d *Dir) Close() {
	invariants.Check(d.fd >= 0, "directory closed twice")
	d.dropBuffer()
	unix.Close(d.fd)
	d.fd = -1
	d.tree.closed()
}

// Sync makes the directory's entries durable.
func (d *Dir) Sync() error { return unix.Fsync(d.fd) }

// List calls fn with the entries from position from (0 is the start) to the end of the
// directory, or until fn returns false because it did not take an entry. ended reports
// whether it reached the end. List omits ".", ".." and hidden entries.
func (d *Dir) List(from int64, fn func(Dirent) bool) (ended bool, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.read && from != 0 {
		if err := d.begin(); err != nil {
			return false, err
		}
	}
	d.read = true
	if from != d.next || from == 0 {
		if _, err := unix.Seek(d.fd, from, 0); err != nil {
			return false, err
		}
		d.next, d.rest = from, nil
	}
	for {
		if len(d.rest) == 0 {
			d.needBuffer()
			size, err := unix.Getdents(d.fd, d.buf)
			if err == unix.EINTR {
				continue
			}
			if err != nil || size == 0 {
				d.dropBuffer()
				return err == nil, err
			}
			d.rest = d.buf[:size]
		}
		e, size := parseDirent(d.rest)
		if size == 0 {
			return false, unix.EIO
		}
		if d.node != nil {
			e.Ino = d.tree.inoFor(d.node.key.dev, e.Ino)
		}
		shown := e.Name != "." && e.Name != ".." && !d.tree.hidden(d.node, e.Name)
		if shown && !fn(e) {
			return false, nil
		}
		d.next, d.rest = e.Next, d.rest[size:]
	}
}

// begin reads the first entries of a directory whose listing was begun by a predecessor. ext4 takes the position at which an open directory
// is read first for the one that it begins with whenever it is read from 0: after the last entry, it would look empty from then on.
func (d *Dir) begin() error {
	for {
		d.needBuffer()
		_, err := unix.Getdents(d.fd, d.buf)
		if err != unix.EINTR {
			d.dropBuffer()
			return err
		}
	}
}

func (d *Dir) needBuffer() {
	if d.buf != nil {
		return
	}
	size := largeListingBytes
	if d.tree.listings.Add(1) > mostLargeListings {
		size = smallListingBytes
	}
	d.buf = make([]byte, size)
}

func (d *Dir) dropBuffer() {
	if d.buf != nil {
		d.buf, d.rest = nil, nil
		d.tree.listings.Add(-1)
	}
}

// parseDirent decodes a linux_dirent64; size is 0 when it is malformed.
func parseDirent(b []byte) (e Dirent, size int) {
	const header = 19
	if len(b) < header {
		return e, 0
	}
	size = int(binary.NativeEndian.Uint16(b[16:]))
	if size < header || size > len(b) {
		return e, 0
	}
	name := b[header:size]
	if i := bytes.IndexByte(name, 0); i >= 0 {
		name = name[:i]
	}
	e.Ino = binary.NativeEndian.Uint64(b)
	e.Next = int64(binary.NativeEndian.Uint64(b[8:]))
	e.Type = uint32(b[18]) << 12
	e.Name = string(name)
	return e, size
}

// Lookup is Tree.Lookup below the open directory.
func (d *Dir) Lookup(name string, keep time.Duration) (Entry, error) {
	began, generation := d.tree.now(), d.tree.renames.Load()
	st, err := statAt(d.fd, name)
	if err == nil && d.tree.hiddenInode(&st) {
		err = unix.ENOENT
	}
	if err != nil {
		return Entry{}, err
	}
	n, fresh := d.tree.remember(place{d.node, name}, &st, generation)
	e := d.tree.entry(n, &st, began, keep)
	e.New = fresh
	return e, nil
}
