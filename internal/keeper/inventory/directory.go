package inventory

import (
	"math"
	"sync"
	"sync/atomic"

	"github.com/kv3fs/kv3fs/internal/invariants"
)

// Unlimited is the limit of a directory that has none.
const Unlimited = math.MaxInt64

// Directory is one directory: where it is, and the totals of all files below it. It stays
// valid, and its totals right, for as long as it exists, wherever it is moved.
type Directory struct {
	key Key

	// Guarded by directories.mu.
	id       uint32
	parent   *Directory // nil for the root
	name     string
	children int      // directories whose parent it is
	gone     bool     // removed, but something is still charged to it or to one below
	listed   uint32   // the last scan that has read all of it
	seen     uint32   // the last scan that found it, or that it is newer than
	queued   uint32   // the last scan that meant to read it
	places   []uint32 // of its files, by group

	// Of the scanner, for Refresh.
	stamp   dirStamp // before it was read last
	stamped uint32   // when it was first seen like that
	settled bool     // long enough before it was read
	whole   uint32   // when a Refresh read it whole
	reread  uint32   // the number of the last Refresh that did

	direct   atomic.Int64 // files charged to it itself, not below
	own      atomic.Int64 // bytes that it takes itself
	reserved atomic.Int64 // set aside for it to grow
	settles  atomic.Uint32

	files   atomic.Int64
	bytes   atomic.Int64 // what it takes, and everything below
	claimed atomic.Int64 // bytes, what is set aside for writes, ghost, and incoming
	limit   atomic.Int64
	waiting atomic.Int64
	// ghost is what the files are believed to take that the first scan has not found yet.
	ghost atomic.Int64
	// incoming is set aside for moves, here and not in the directories above.
	incoming atomic.Int64
}

// Bytes returns what the directory and everything below it take.
func (d *Directory) Bytes() int64 { return d.bytes.Load() }

// Files returns how many files are below the directory.
func (d *Directory) Files() int64 { return d.files.Load() }

// Claimed returns Bytes and what is set aside for writes, and during the first scan what the
// directory is believed to hold beyond what was found. It is at most Limit, unless files
// grow behind the owner's back, names of one are removed elsewhere, or the limit is lowered.
func (d *Directory) Claimed() int64 { return d.claimed.Load() }

// Believed returns the part of Claimed that the first scan has yet to find.
func (d *Directory) Believed() int64 { return d.ghost.Load() }

// Believe says what the directory is believed to hold before the first scan: room is
// given as if it was there, until the scan has ended.
func (d *Directory) Believe(bytes int64) {
	bytes = max(bytes-d.bytes.Load(), 0)
	d.claimed.Add(bytes - d.ghost.Swap(bytes))
}

// Limit returns what Claimed may reach, Unlimited where it may be any.
func (d *Directory) Limit() int64 { return d.limit.Load() }

// SetLimit changes what Claimed may reach.
func (d *Directory) SetLimit(bytes int64) { d.limit.Store(bytes) }

// Queue adds n to how many callers wait for room in the directory. While there are some,
// others find no room for files: they would overtake.
func (d *Directory) Queue(n int64) { d.waiting.Add(n) }

// ForEntries returns the part of Limit that is kept for new entries of directories: while one
// is made, the kernel holds the lock of its directory, and readers there would wait, too.
func (d *Directory) ForEntries() int64 {
	const most, part = 4 << 20, 64
	limit := d.Limit()
	if limit == Unlimited {
		return 0
	}
	return min(limit/part, most)
}

// claim sets n bytes aside, if there is room.
func (d *Directory) claim(n int64, entry, overtake bool) bool {
	if n > 0 && !entry && !overtake && d.waiting.Load() > 0 {
		return false
	}
	limit := d.Limit()
	if !entry {
		limit -= d.ForEntries()
	}
	for {
		old := d.claimed.Load()
		if n > 0 && n > limit-old {
			return false
		}
		if d.claimed.CompareAndSwap(old, old+n) {
			return true
		}
	}
}

// directories are those that have a record.
type directories struct {
	mu    sync.RWMutex
	root  *Directory
	byKey map[Key]*Directory
	byID  []*Directory // by Directory.id; nil where one was dropped
	free  []uint32
	moves atomic.Uint64 // directories moved and removed so far; changed under mu

	places places
}

func newDirectories(root Key) *directories {
	d := &directories{byKey: make(map[Key]*Directory), places: places{numbers: make(map[Group]uint32)}}
	d.root = d.addLocked(root, nil, "")
	return d
}

// addLocked adds a directory that has no record.
func (ds *directories) addLocked(k Key, parent *Directory, name string) *Directory {
	d := &Directory{key: k, parent: parent, name: name}
	d.limit.Store(Unlimited)
	if n := len(ds.free); n > 0 {
		d.id = ds.free[n-1]
		ds.free = ds.free[:n-1]
		ds.byID[d.id] = d
	} else {
		d.id = uint32(len(ds.byID))
		ds.byID = append(ds.byID, d)
	}
	if parent != nil {
		parent.children++
	}
	ds.byKey[k] = d
	return d
}

// removeLocked drops the record of a directory that is not there any more. It stays under
// its number for as long as something is charged to it.
func (ds *directories) removeLocked(d *Directory) {
	if ds.byKey[d.key] == d {
		delete(ds.byKey, d.key)
	}
	d.gone = true
	ds.moves.Add(1)
	ds.settleLocked(d, d.reserved.Load(), 0)
	ds.sweepLocked(d)
}

// sweepLocked frees the numbers of directories that are gone and to which nothing is
// charged, from d upwards.
func (ds *directories) sweepLocked(d *Directory) {
	for d != nil && d.gone && d.children == 0 && d.direct.Load() == 0 && ds.byID[d.id] == d {
		ds.byID[d.id] = nil
		ds.free = append(ds.free, d.id)
		for _, id := range d.places {
			ds.places.drop(id)
		}
		d.places = nil
		d.parent.children--
		d = d.parent
	}
}

// moveLocked makes d an entry of another directory and moves its totals there. It refuses
// what no file system does: to move a directory below itself.
func (ds *directories) moveLocked(d, parent *Directory, name string) bool {
	for up := parent; up != nil; up = up.parent {
		if up == d {
			return false
		}
	}
	from := d.parent
	d.name = name
	ds.moves.Add(1)
	if from == parent {
		return true
	}
	bytes, files, held := d.bytes.Load(), d.files.Load(), d.heldLocked()
	for up := from; up != nil; up = up.parent {
		up.add(-bytes, -files, -held)
	}
	from.children--
	d.parent = parent
	parent.children++
	for up := parent; up != nil; up = up.parent {
		up.add(bytes, files, held)
	}
	ds.sweepLocked(from)
	return true
}

// claimLocked claims in d and all directories above, or returns the one that refuses.
func (ds *directories) claimLocked(d *Directory, n int64, entry, overtake bool) *Directory {
	for up := d; up != nil; up = up.parent {
		if up.claim(n, entry, overtake) {
			continue
		}
		for back := d; back != up; back = back.parent {
			back.claimed.Add(-n)
		}
		return up
	}
	return nil
}

// settleLocked is Settle for a directory, with mu held for reading at least.
func (ds *directories) settleLocked(d *Directory, claimed, blocks int64) {
	for {
		held := d.reserved.Load()
		claimed = min(claimed, held)
		if d.reserved.CompareAndSwap(held, held-claimed) {
			break
		}
	}
	var grown int64
	if blocks >= 0 {
		size := min(blocks, mostBlocks) * blockBytes
		grown = size - d.own.Swap(size)
	}
	ds.chargeLocked(d, grown, 0, grown-claimed, false)
}

func (d *Directory) add(bytes, files, claimed int64) {
	b := d.bytes.Add(bytes)
	n := d.files.Add(files)
	c := d.claimed.Add(claimed)
	invariants.Check(b >= 0 && n >= 0 && c >= 0, "directory %q has %d files of %d bytes and %d claimed", d.name, n, b, c)
}

// chargeLocked changes what is below d, with mu held for reading at least. found says
// that the scan did: what is believed to be there is so much less. direct is the change
// of the number of files charged to d itself.
func (ds *directories) chargeLocked(d *Directory, bytes, files, claimed int64, found bool) {
	d.direct.Add(files)
	for up := d; up != nil; up = up.parent {
		held := claimed
		if found {
			held -= up.lay(bytes)
		}
		up.add(bytes, files, held)
	}
}

// chargeFileLocked is chargeLocked for what changes of the files of a place.
func (ds *directories) chargeFileLocked(id uint32, bytes, files, claimed int64, found bool) {
	p := ds.places.all[id]
	p.add(bytes, files)
	if files < 0 {
		ds.places.left.Add(-files)
	}
	ds.chargeLocked(p.dir, bytes, files, claimed, found)
}

func (p *place) add(bytes, files int64) {
	b, n := p.bytes.Add(bytes), p.files.Add(files)
	invariants.Check(b >= 0 && n >= 0, "a place in directory %q has %d files of %d bytes", p.dir.name, n, b)
}

// lay takes up to n bytes from the ghost and returns how many.
func (d *Directory) lay(n int64) int64 {
	for {
		ghost := d.ghost.Load()
		part := min(ghost, max(n, 0))
		if part == 0 || d.ghost.CompareAndSwap(ghost, ghost-part) {
			return part
		}
	}
}

// pathLocked returns the path of d below the root, "." for the root itself, and false for
// a directory that is gone.
func (d *Directory) pathLocked() (string, bool) {
	size := 0
	for up := d; up.parent != nil; up = up.parent {
		if up.gone {
			return "", false
		}
		size += len(up.name) + 1
	}
	if size == 0 {
		return ".", !d.gone
	}
	path := make([]byte, size)
	for up := d; up.parent != nil; up = up.parent {
		size--
		if size < len(path)-1 {
			path[size] = '/'
		}
		size -= len(up.name)
		copy(path[size:], up.name)
	}
	return string(path[:len(path)-1]), true
}

// belowLocked reports whether d is top or below it.
func (d *Directory) belowLocked(top *Directory) bool {
	for up := d; up != nil; up = up.parent {
		if up == top {
			return true
		}
	}
	return false
}
