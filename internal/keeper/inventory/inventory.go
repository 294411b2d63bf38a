package inventory

import (
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/internal/logpace"
)

// Options of New. The zero value is valid.
type Options struct {
	// Skip is an entry of the directory that is not looked at, and not counted.
	Skip string

	// Kind says how to treat a file, and whose it is, by its path below the directory. It may be
	// called concurrently. nil: every file is an Entry.
	Kind func(path string) (Kind, Group)

	// Uses is told how entries are used; nil: nobody is.
	Uses Uses

	// Elapsed says how long the inventory has been there. nil: the monotonic clock does.
	Elapsed func() time.Duration

	// Silent: no events come. nil: they do.
	Silent *Silent

	// Log gets what cannot be read. nil: slog.Default.
	Log *slog.Logger
}

// Inventory is what one directory holds. All methods may be called concurrently.
//
// Files on other file systems that are mounted below the directory are not part of it: events
// that name a directory of another device are ignored.
type Inventory struct {
	Options
	fd      int
	key     Key
	dirs    *directories
	pace    logpace.Pace
	listing atomic.Pointer[[listBytes]byte] // a buffer that no listing uses, or nil

	main   *table   // of the root's device
	others sync.Map // uint64 to *table: overlayfs shows files of several devices

	newcomers newcomers
	scanning  sync.Mutex
	growing   growing // guarded by scanning
	pacer     pacer
	looked    atomic.Int64
	scans     atomic.Uint32 // begun so far
	scanned   atomic.Bool   // one has ended
	unread    atomic.Int64  // entries that scans could not read
	looksMu   sync.Mutex
	looks     []look // guarded by looksMu
	overlooks bool   // looks was full
}

// look is an entry that an event named and that has no record.
type look struct {
	dir  *Directory
	name string
}

// mostLooks bounds Inventory.looks; beyond it only the next scan helps.
const mostLooks = 1 << 16

// New returns the inventory of a directory, in which nothing has been found yet. The caller
// closes it after the last use.
func New(dir string, opts Options) (*Inventory, error) {
	if opts.Kind == nil {
		opts.Kind = func(string) (Kind, Group) { return Entry, Group{} }
	}
	if opts.Elapsed == nil {
		start := time.Now()
		opts.Elapsed = func() time.Duration { return time.Since(start) }
	}
	if opts.Log == nil {
		opts.Log = slog.Default()
	}
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("open directory %s: %w", dir, err)
	}
	st, err := statAt(fd, "")
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("stat directory %s: %w", dir, err)
	}
	k := keyOf(&st)
	v := &Inventory{
		Options: opts, fd: fd, key: k, dirs: newDirectories(k), main: newTable(k.Dev), growing: growing{}, newcomers: newcomers{found: map[Key]uint32{}},
	}
	v.Settle(k, 0, int64(st.Blocks))
	return v, nil
}

// Close closes the directory. No Scan and no Names may be running.
func (v *Inventory) Close() error { return unix.Close(v.fd) }

// FD returns a descriptor of the directory, which is valid until Close.
func (v *Inventory) FD() int { return v.fd }

// Root returns the directory itself.
func (v *Inventory) Root() *Directory { return v.dirs.root }

// Directory returns the record of a directory, if it has one.
func (v *Inventory) Directory(k Key) (*Directory, bool) {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	d, ok := v.dirs.byKey[k]
	return d, ok
}

// Directories returns how many directories there are, the root included.
func (v *Inventory) Directories() int {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	return len(v.dirs.byKey)
}

// Path returns where a directory is below the root, "." for the root, and false for a
// directory that is gone.
func (v *Inventory) Path(d *Directory) (string, bool) {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	return d.pathLocked()
}

// KeyOf returns the name of a directory as events have it.
func (v *Inventory) KeyOf(d *Directory) Key { return d.key }

// clockStart is what the clock of a new inventory shows, so that ages from before fit.
const clockStart = 1 << 31

// Now returns seconds on the inventory's clock. It does not follow the wall clock, and does
// not go back.
func (v *Inventory) Now() uint32 { return clockAt(v.Elapsed()) }

func clockAt(elapsed time.Duration) uint32 { return clockStart + uint32(elapsed/time.Second) }

// back returns the second that was age ago.
func (v *Inventory) back(age time.Duration) uint32 {
	return v.Now() - uint32(min(max(age/time.Second, 0), clockStart-1))
}

// Unread returns how many entries the scans could not read.
func (v *Inventory) Unread() int64 { return v.unread.Load() }

// Scanned reports whether a scan has ended: everything that is there has been found.
func (v *Inventory) Scanned() bool { return v.scanned.Load() }

func (v *Inventory) shard(k Key) *shard {
	if k.Dev == v.main.dev {
		return v.main.of(k.Ino)
	}
	t, ok := v.others.Load(k.Dev)
	if !ok {
		t, _ = v.others.LoadOrStore(k.Dev, newTable(k.Dev))
	}
	return t.(*table).of(k.Ino)
}

// ours reports whether a file in that directory is on the root's file system. The zero Key
// is that of a directory nobody knows.
func (v *Inventory) ours(dir Key) bool { return dir.Dev == v.key.Dev || dir == Key{} }

// home returns the directory to charge a file to: its own, or the root while that has no
// record.
func (v *Inventory) home(dir Key) (d *Directory, placed bool) {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	if d, ok := v.dirs.byKey[dir]; ok {
		return d, true
	}
	return v.dirs.root, false
}

// kindOf returns the Kind of an entry of d, and whose it is.
func (v *Inventory) kindOf(d *Directory, entry string) (Kind, Group) {
	path, ok := v.Path(d)
	switch {
	case !ok:
		return Entry, Group{}
	case path == ".":
		return v.Kind(entry)
	}
	return v.Kind(path + "/" + entry)
}

// tagOf returns a small hash of a name, to tell a file's names apart.
func tagOf(entry string) uint8 { return uint8(xxh3.HashString(entry)) }

// odd returns the flag of a file that is newer than the last scan.
func (v *Inventory) odd() bool { return v.scans.Load()%2 == 1 }

// Created tells that k got a name: a new file or directory, or a further name of a file.
func (v *Inventory) Created(k, dir Key, entry string, isDir bool) {
	if !v.ours(dir) {
		return
	}
	if isDir {
		v.madeDirectory(k, dir, entry)
		return
	}
	v.lostDirectory(k) // one that was removed unseen had the same number
	d, placed := v.home(dir)
	kind, group := v.kindOf(d, entry)
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[k.Ino]
	switch {
	case !ok:
		f = file{lastUse: v.Now(), tag: tagOf(entry)}
		f.setKind(kind)
		f.set(unplaced, !placed)
		f.set(seenOdd, v.odd())
		v.begins(s, k.Ino, &f, d, entry)
		v.insertLocked(s, k.Ino, f, d, group, false)
		return
	case f.is(nameless):
		f.set(nameless, false)
		f.tag = tagOf(entry)
		f.setKind(kind)
		v.moveLocked(s, k.Ino, &f, d, group)
		f.set(unplaced, !placed)
		v.begins(s, k.Ino, &f, d, entry)
	case !placed:
		// The scan, which has not got to that directory, will find this name.
	case f.is(unplaced):
		f.set(unplaced, false)
		f.tag = tagOf(entry)
		v.moveLocked(s, k.Ino, &f, d, group)
	case f.is(several):
		s.addName(k.Ino, name{d.id, tagOf(entry)})
	case v.homeOf(&f) != d || f.tag != tagOf(entry):
		f.set(several, true)
		s.names[k.Ino] = []name{{v.homeOf(&f).id, f.tag}, {d.id, tagOf(entry)}}
	case !f.is(fresh):
		v.begins(s, k.Ino, &f, d, entry) // a scan has found it before the event came
	}
	f.set(seenOdd, v.odd())
	s.files[k.Ino] = f
}

// addName adds one of the names of a file, if it is not known.
func (s *shard) addName(ino uint64, n name) {
	if !slices.Contains(s.names[ino], n) {
		s.names[ino] = append(s.names[ino], n)
	}
}

// takeName removes one of the names of a file.
func (s *shard) takeName(ino uint64, n name) {
	s.names[ino] = slices.DeleteFunc(s.names[ino], func(known name) bool { return known == n })
}

func (v *Inventory) madeDirectory(k, dir Key, entry string) {
	v.dirs.mu.Lock()
	defer v.dirs.mu.Unlock()
	parent, ok := v.dirs.byKey[dir]
	if !ok || k == v.key {
		return // the scan, which has not got to the parent, will find both
	}
	d, ok := v.dirs.byKey[k]
	if ok {
		v.dirs.moveLocked(d, parent, entry)
	} else {
		d = v.dirs.addLocked(k, parent, entry)
	}
	d.seen = v.scans.Load()
}

// Removed tells that k lost a name, while its inode number cannot have been given to another
// file yet. With last it has none left: it is charged until its last use ends.
func (v *Inventory) Removed(k, dir Key, entry string, last bool) {
	if !v.ours(dir) || v.lostDirectory(k) {
		return
	}
	d, placed := v.home(dir)
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.changes++
	f, ok := s.files[k.Ino]
	if !ok {
		return
	}
	if last {
		if placed {
			v.leaves(&f, d, entry)
		}
		delete(s.names, k.Ino)
		f.set(several, false)
		f.set(nameless, true)
		if f.is(inUse) {
			v.moveLocked(s, k.Ino, &f, v.homeOf(&f), Group{})
		}
		s.files[k.Ino] = f
		v.endLocked(s, k.Ino)
		return
	}
	if f.is(several) && placed {
		s.takeName(k.Ino, name{d.id, tagOf(entry)})
		v.rehomeLocked(s, k.Ino, &f)
	}
	s.files[k.Ino] = f
}

// rehomeLocked charges a file to a directory where it has a name, if that is known.
func (v *Inventory) rehomeLocked(s *shard, ino uint64, f *file) {
	all, home := s.names[ino], v.homeOf(f)
	for _, n := range all {
		if n.dir == home.id {
			return
		}
	}
	d := v.dirs.root // until the scan finds one of its names
	if len(all) > 0 {
		d = v.numbered(all[0].dir)
	} else {
		delete(s.names, ino)
		f.set(several, false)
		f.set(unplaced, true)
	}
	if d != nil {
		v.moveLocked(s, ino, f, d, v.groupOf(f)) // most likely
	}
}

func (v *Inventory) numbered(id uint32) *Directory {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	return v.dirs.byID[id]
}

// homeOf returns the directory that a file is charged to.
func (v *Inventory) homeOf(f *file) *Directory {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	return v.dirs.places.all[f.place].dir
}

// lostDirectory removes the record of a directory, if k is one.
func (v *Inventory) lostDirectory(k Key) bool {
	if _, ok := v.Directory(k); !ok {
		return false
	}
	v.dirs.mu.Lock()
	defer v.dirs.mu.Unlock()
	d, ok := v.dirs.byKey[k]
	if ok && d != v.dirs.root {
		v.dirs.removeLocked(d)
	}
	return ok
}

// Renamed tells that an entry was moved. What it replaced, if anything, was Removed before.
func (v *Inventory) Renamed(k, from Key, oldName string, to Key, newName string) {
	if !v.ours(to) {
		return
	}
	if v.movedDirectory(k, from, to, newName) {
		return
	}
	was, known := v.home(from)
	d, placed := v.home(to)
	kind, group := v.kindOf(d, newName)
	s := v.shard(k)
	s.mu.Lock()
	s.changes++
	f, ok := s.files[k.Ino]
	if !ok {
		s.mu.Unlock()
		if placed {
			v.lookAt(d, newName)
		}
		return
	}
	defer s.mu.Unlock()
	if f.is(several) {
		if known {
			s.takeName(k.Ino, name{was.id, tagOf(oldName)})
		}
		if placed {
			s.addName(k.Ino, name{d.id, tagOf(newName)})
		}
		v.rehomeLocked(s, k.Ino, &f)
	} else {
		if known && placed && v.homeOf(&f) != was {
			v.lookAt(d, newName) // the event about an earlier move may come later
		}
		v.moveLocked(s, k.Ino, &f, d, group)
		f.tag = tagOf(newName)
		f.set(unplaced, !placed)
	}
	before := f.kind()
	f.setKind(kind)
	f.set(seenOdd, v.odd())
	switch {
	case kind != Entry:
	case before == Entry:
		v.follow(s, k.Ino, &f, d, newName)
	default:
		v.begins(s, k.Ino, &f, d, newName)
	}
	v.stored(s, k.Ino, &f)
	s.files[k.Ino] = f
}

// movedDirectory moves a directory, if k is one that has a record.
func (v *Inventory) movedDirectory(k, from, to Key, newName string) bool {
	if _, ok := v.Directory(k); !ok {
		return false
	}
	v.dirs.mu.Lock()
	defer v.dirs.mu.Unlock()
	d, ok := v.dirs.byKey[k]
	if !ok || d == v.dirs.root {
		return ok
	}
	if parent, ok := v.dirs.byKey[to]; ok {
		known := d.parent.key == from
		if moved := v.dirs.moveLocked(d, parent, newName); !moved || !known {
			v.lookAt(parent, newName) // the event about an earlier move may come later
		}
		d.seen = v.scans.Load()
	} else {
		v.Overlook()
	}
	return true
}

// lookAt has the scan look at an entry that an event named, but that has no record.
func (v *Inventory) lookAt(d *Directory, entry string) {
	v.looksMu.Lock()
	defer v.looksMu.Unlock()
	if len(v.looks) < mostLooks {
		v.looks = append(v.looks, look{d, entry})
	} else {
		v.overlooks = true
	}
}

// Overlook has the next Look ask for a scan.
func (v *Inventory) Overlook() {
	v.looksMu.Lock()
	v.overlooks = true
	v.looksMu.Unlock()
}

// Opened tells that a file is in use from now on. entry is "" for a file without a name.
func (v *Inventory) Opened(k, dir Key, entry string) {
	s := v.shard(k)
	s.mu.Lock()
	_, ok := s.files[k.Ino]
	s.mu.Unlock()
	if !ok && !v.ours(dir) {
		return
	}
	d, placed := v.home(dir)
	kind, group := Entry, Group{}
	if entry != "" && !ok {
		kind, group = v.kindOf(d, entry)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.files[k.Ino]; !ok {
		f = file{lastUse: v.Now(), tag: tagOf(entry)}
		f.setKind(kind)
		f.set(unsized, true)
		f.set(nameless, entry == "")
		f.set(unplaced, !placed)
		f.set(seenOdd, v.odd())
		v.insertLocked(s, k.Ino, f, d, group, false)
	}
	f, u := s.useLocked(k.Ino)
	u.opens++
	if entry != "" && placed && !f.is(followed) {
		v.follow(s, k.Ino, &f, d, entry)
	}
	s.files[k.Ino] = f
}

// useLocked returns a file, marked as in use, and its uses.
func (s *shard) useLocked(ino uint64) (file, *use) {
	f := s.files[ino]
	u := s.uses[ino]
	if u == nil {
		u = &use{}
		s.uses[ino] = u
		f.set(inUse, true)
	}
	return f, u
}

// Read tells that a file was read, or opened to be.
func (v *Inventory) Read(k Key) {
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if f, ok := s.files[k.Ino]; ok {
		v.touch(s, k.Ino, &f)
		s.files[k.Ino] = f
	}
}

// Closed tells that a use of a file ended, and what it takes now, as Settle does.
func (v *Inventory) Closed(k Key, blocks512 int64) {
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[k.Ino]
	if !ok {
		s.changes++ // it may be one that the scan is looking at
		return
	}
	u := s.uses[k.Ino]
	if u == nil {
		s.changes++
	} else if u.opens > 0 {
		u.opens--
	}
	v.resizeLocked(&f, blocks512, 0)
	s.files[k.Ino] = f
	v.endLocked(s, k.Ino)
}

// Claim sets n bytes aside for a file or directory to grow, in all directories above it, or
// returns the innermost directory that has no room, and sets nothing aside. Settle ends a
// claim. With overtake it does not matter that others wait for room; for directories, which
// may also have what is kept for entries, it never does.
func (v *Inventory) Claim(k Key, n int64, overtake bool) (refused *Directory) {
	if refused, ok := v.claimDirectory(k, n, overtake); ok {
		return refused
	}
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[k.Ino]
	if !ok && !v.ours(k) {
		return nil
	}
	v.dirs.mu.RLock()
	d := v.dirs.root // nobody has said where it is
	if ok {
		d = v.dirs.places.all[f.place].dir
	}
	refused = v.dirs.claimLocked(d, n, false, overtake)
	v.dirs.mu.RUnlock()
	switch {
	case refused != nil:
	case !ok:
		s.stray[k.Ino] += n
	default:
		f, u := s.useLocked(k.Ino)
		u.reserved += n
		s.files[k.Ino] = f
	}
	return refused
}

func (v *Inventory) claimDirectory(k Key, n int64, overtake bool) (refused *Directory, ok bool) {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	d, ok := v.dirs.byKey[k]
	if !ok {
		return nil, false
	}
	if refused = v.dirs.claimLocked(d, n, true, overtake); refused == nil {
		d.reserved.Add(n)
	}
	return refused, true
}

// Settle ends claims of that many bytes, and tells how many blocks the file or directory takes
// now; negative: not known. Of the calls for one file, the later one is the newer. What has
// no record stays without.
func (v *Inventory) Settle(k Key, claimed, blocks512 int64) {
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if part := min(claimed, s.stray[k.Ino]); part > 0 {
		claimed -= part
		if s.stray[k.Ino] -= part; s.stray[k.Ino] == 0 {
			delete(s.stray, k.Ino)
		}
		v.dirs.mu.RLock()
		v.dirs.chargeLocked(v.dirs.root, 0, 0, -part, false)
		v.dirs.mu.RUnlock()
	}
	if v.settleDirectory(k, claimed, blocks512) {
		return
	}
	f, ok := s.files[k.Ino]
	if !ok {
		s.changes++ // it may be one that the scan is looking at
		return
	}
	u := s.uses[k.Ino]
	if u == nil {
		claimed = 0
		s.changes++
	} else {
		invariants.Check(u.reserved >= claimed, "%d bytes of %d settled", claimed, u.reserved)
		claimed = min(claimed, u.reserved)
		u.reserved -= claimed
	}
	if claimed > 0 {
		f.lastUse = max(f.lastUse, v.Now()) // it was written, which is no use that is counted
	}
	v.resizeLocked(&f, blocks512, claimed)
	s.files[k.Ino] = f
	v.endLocked(s, k.Ino)
}

func (v *Inventory) settleDirectory(k Key, claimed, blocks512 int64) bool {
	v.dirs.mu.RLock()
	defer v.dirs.mu.RUnlock()
	d, ok := v.dirs.byKey[k]
	if !ok {
		return false
	}
	d.settles.Add(1)
	v.dirs.settleLocked(d, claimed, blocks512)
	return true
}

// insertLocked adds the record of a file of d, which may have been dropped meanwhile. found
// says that the scan saw it.
func (v *Inventory) insertLocked(s *shard, ino uint64, f file, d *Directory, g Group, found bool) {
	v.place(&f, d, g, func() { v.dirs.chargeFileLocked(f.place, f.bytes(), 1, f.bytes(), found) })
	s.files[ino] = f
}

// place makes d the directory of a file, or the root if d has no record any more, and runs charge with
// directories.mu held.
func (v *Inventory) place(f *file, d *Directory, g Group, charge func()) {
	v.dirs.at(d, g, func(id uint32) {
		f.place = id
		f.set(unplaced, f.is(unplaced) || v.dirs.places.all[id].dir != d)
		charge()
	})
}

// resizeLocked changes what a file takes, where the number of blocks is not negative, and
// releases what was claimed.
func (v *Inventory) resizeLocked(f *file, blocks int64, claimed int64) {
	before := f.bytes()
	if blocks >= 0 {
		f.setBlocks(blocks)
		f.set(unsized, false)
	}
	grown := f.bytes() - before
	if grown != 0 || claimed != 0 {
		v.charge(f.place, grown, 0, grown-claimed, false)
	}
}

// moveLocked charges a file to another directory, or as another group's.
func (v *Inventory) moveLocked(s *shard, ino uint64, f *file, d *Directory, g Group) {
	held := f.bytes()
	if u := s.uses[ino]; u != nil {
		held += u.reserved
	}
	from := f.place
	var left *Directory
	v.place(f, d, g, func() {
		ps := &v.dirs.places
		switch was, is := ps.all[from], ps.all[f.place]; {
		case was == is:
		case was.dir == is.dir:
			was.add(-f.bytes(), -1)
			is.add(f.bytes(), 1)
			ps.left.Add(1)
		default:
			left = was.dir
			v.dirs.chargeFileLocked(from, -f.bytes(), -1, -held, false)
			v.dirs.chargeFileLocked(f.place, f.bytes(), 1, held, false)
		}
	})
	if left != nil {
		v.sweep(left)
	}
}

// endLocked forgets the uses of a file if there are none, and the file if it has no name
// either.
func (v *Inventory) endLocked(s *shard, ino uint64) {
	f := s.files[ino]
	if u := s.uses[ino]; u != nil {
		if u.opens > 0 || u.reserved > 0 {
			return
		}
		delete(s.uses, ino)
		s.changes++ // a scan does not touch what is in use, but may have looked at it before
		f.set(inUse, false)
		v.stored(s, ino, &f)
		s.files[ino] = f
	}
	if f.is(nameless) {
		v.dropLocked(s, ino, f)
	}
}

// dropLocked removes the record of a file that is not in use.
func (v *Inventory) dropLocked(s *shard, ino uint64, f file) {
	delete(s.files, ino)
	delete(s.names, ino)
	delete(s.followed, ino)
	v.charge(f.place, -f.bytes(), -1, -f.bytes(), false)
}

// charge changes the totals of the place of a file, of its directory, and of those above it.
func (v *Inventory) charge(place uint32, bytes, files, claimed int64, found bool) {
	v.dirs.mu.RLock()
	d := v.dirs.places.all[place].dir
	v.dirs.chargeFileLocked(place, bytes, files, claimed, found)
	v.dirs.mu.RUnlock()
	if files < 0 {
		v.sweep(d)
	}
}

// sweep drops the record of a directory that is gone once nothing is charged to it.
func (v *Inventory) sweep(d *Directory) {
	v.dirs.mu.RLock()
	empty := d.gone && d.direct.Load() == 0
	v.dirs.mu.RUnlock()
	if empty {
		v.dirs.mu.Lock()
		v.dirs.sweepLocked(d)
		v.dirs.mu.Unlock()
	}
}
