package inventory

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"
)

// scanTries bounds how often an entry is read again because it changed meanwhile.
const (
	scanTries = 16
	scanPause = time.Millisecond // before one of them, for all entries together
)

// Scan reads the whole directory, and makes the records agree with it. Events are welcome
// meanwhile; each lock is held for one entry only. It returns the context's error if that
// ends first, and then nothing is dropped. What cannot be read is logged, counted and left
// as it is.
func (v *Inventory) Scan(ctx context.Context) error {
	v.scanning.Lock()
	defer v.scanning.Unlock()
	number := v.scans.Add(1)
	settles := v.settles(v.key)
	if st, err := statAt(v.fd, ""); err == nil && v.settles(v.key) == settles {
		v.Settle(v.key, 0, int64(st.Blocks))
	}
	sc := &scan{v: v, ctx: ctx, number: number, queue: []*Directory{v.dirs.root}}
	if err := sc.run(ctx); err != nil {
		return err
	}
	sc.drop()
	v.endHeat()
	v.dirs.mu.RLock()
	for _, d := range v.dirs.byID {
		if d != nil {
			d.claimed.Add(-d.ghost.Swap(0))
		}
	}
	v.dirs.mu.RUnlock()
	v.scanned.Store(true)
	return nil
}

// Look looks at the entries that events named and that had no record. It reports whether
// there were too many to remember, so that a Scan should follow.
func (v *Inventory) Look(ctx context.Context) (overlooked bool, err error) {
	v.scanning.Lock()
	defer v.scanning.Unlock()
	sc := &scan{v: v, ctx: ctx, number: v.scans.Load()}
	err = sc.run(ctx)
	v.looksMu.Lock()
	defer v.looksMu.Unlock()
	overlooked, v.overlooks = v.overlooks, false
	return overlooked, err
}

type scan struct {
	v      *Inventory
	ctx    context.Context // ends its pauses
	partly bool            // a Refresh
	number uint32
	queue  []*Directory // to be read
	late   []look       // directories and entries that were being moved
	tries  int          // of those that were late
	buf    []byte
}

// run reads the directories in the queue, those that are found below them, and the entries
// that events named.
func (sc *scan) run(ctx context.Context) error {
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		if n := len(sc.queue); n > 0 {
			d := sc.queue[n-1]
			sc.queue = sc.queue[:n-1]
			if err := sc.read(ctx, d); err != nil {
				return err
			}
			continue
		}
		v := sc.v
		v.looksMu.Lock()
		looks := v.looks
		v.looks = nil
		v.looksMu.Unlock()
		if len(looks) == 0 && len(sc.late) > 0 && sc.tries < scanTries {
			// Their events are on the way.
			sc.tries++
			time.Sleep(scanPause)
			looks, sc.late = sc.late, nil
		}
		if len(looks) == 0 {
			return nil
		}
		for _, l := range looks {
			if l.name == "" {
				sc.queue = append(sc.queue, l.dir)
			} else {
				sc.lookAt(l)
			}
		}
	}
}

func (sc *scan) lookAt(l look) {
	fd, err := sc.v.open(l.dir)
	if err != nil {
		sc.missed(l, err)
		return
	}
	defer unix.Close(fd)
	sc.entry(fd, l.dir, dirent{Name: l.name})
}

// missed remembers what is in a directory that could not be opened. If it has been moved,
// the event that tells its new path may follow.
func (sc *scan) missed(l look, err error) {
	_, there := sc.v.Path(l.dir)
	switch {
	case !errors.Is(err, unix.ENOENT) && !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP):
		sc.v.unreadable(l.dir, l.name, err)
	case there:
		sc.late = append(sc.late, l)
	}
}

// read reads one directory. Only the context's error is returned.
func (sc *scan) read(ctx context.Context, d *Directory) error {
	v := sc.v
	fd, err := v.open(d)
	if err != nil {
		sc.missed(look{d, ""}, err)
		return nil
	}
	defer unix.Close(fd)
	sc.stamp(fd, d)
	whole := true
	if sc.buf == nil {
		sc.buf = make([]byte, listBytes)
	}
	err = list(fd, sc.buf, nil, func(e dirent) bool {
		if d == v.dirs.root && e.Name == v.Skip && e.Name != "" {
			return true
		}
		if sc.known(d, e) {
			return ctx.Err() == nil
		}
		if e.Type == 0 || e.Type == unix.S_IFREG || e.Type == unix.S_IFDIR {
			whole = sc.entry(fd, d, e) && whole
		}
		return ctx.Err() == nil
	})
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		v.unreadable(d, "", err)
		return nil
	}
	if whole {
		v.dirs.mu.Lock()
		d.listed = sc.number
		v.dirs.mu.Unlock()
	}
	return nil
}

// entry looks at one entry of d, which is open as fd. It reports whether it could be read.
func (sc *scan) entry(fd int, d *Directory, e dirent) bool {
	v := sc.v
	key := Key{v.key.Dev, e.Ino}
	for range scanTries {
		s, moves := v.shard(key), v.dirs.moves.Load()
		s.mu.Lock()
		changes := s.changes
		s.mu.Unlock()
		settles := v.settles(key)
		sc.pace()
		st, err := statAt(fd, e.Name)
		switch {
		case errors.Is(err, unix.ENOENT):
			return true
		case err != nil:
			v.unreadable(d, e.Name, err)
			return v.stays(key, d, e.Name)
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFDIR:
			if sc.directory(d, e.Name, &st, moves, settles) {
				return true
			}
			continue
		case unix.S_IFREG:
		default:
			return true
		}
		if keyOf(&st) != key {
			key = keyOf(&st) // on overlayfs a listing may show other numbers
			if v.shard(key) != s {
				continue
			}
		}
		if v.found(key, d, e.Name, &st, changes) {
			sc.note(key, d, e.Name, &st)
			return true
		}
	}
	v.lookAt(d, e.Name)
	return true
}

// stays marks the record of a file that cannot be looked at as seen, so that a scan can tell what is gone beside it.
// It reports whether there is one.
func (v *Inventory) stays(k Key, d *Directory, entry string) bool {
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[k.Ino]
	if !ok || v.homeOf(&f) != d || f.tag != tagOf(entry) {
		return false
	}
	f.set(seenOdd, v.odd())
	s.files[k.Ino] = f
	return true
}

// directory adds a directory that was found when so many had been moved and it had settled
// so often, and has it read if this scan has not. It reports false if the entry has to be
// read again.
func (sc *scan) directory(parent *Directory, entry string, st *unix.Statx_t, moves uint64, settles uint32) bool {
	v := sc.v
	k := keyOf(st)
	if k.Dev != v.key.Dev || k == v.key {
		return true // another file system is mounted there
	}
	v.dirs.mu.Lock()
	defer v.dirs.mu.Unlock()
	if v.dirs.moves.Load() != moves {
		return false
	}
	if v.dirs.byID[parent.id] != parent {
		return true
	}
	d, ok := v.dirs.byKey[k]
	switch {
	case !ok:
		d = v.dirs.addLocked(k, parent, entry)
	case d.parent != parent || d.name != entry:
		// The event about the move is on its way, or there is none.
		v.dirs.moveLocked(d, parent, entry)
	}
	if d.settles.Load() == settles {
		v.dirs.settleLocked(d, 0, int64(st.Blocks))
	}
	d.seen = sc.number
	if !sc.partly || !ok {
		sc.enqueueLocked(d)
	}
	return true
}

// settles returns how often an event has told the size of a directory.
func (v *Inventory) settles(k Key) uint32 {
	if d, ok := v.Directory(k); ok {
		return d.settles.Load()
	}
	return 0
}

// found makes the record of a file agree with an entry that was read when the shard had
// seen so many changes. It reports false if the entry has to be read again.
func (v *Inventory) found(k Key, d *Directory, entry string, st *unix.Statx_t, changes uint64) bool {
	kind, group := v.kindOf(d, entry)
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.changes != changes {
		return false
	}
	f, ok := s.files[k.Ino]
	if !ok {
		f = file{tag: tagOf(entry), lastUse: v.back(time.Since(v.lastUse(st)))}
		f.setBlocks(int64(st.Blocks))
		f.setKind(kind)
		f.set(seenOdd, v.odd())
		v.warm(s, k, &f)
		v.usedLocked(&f, v.lastUse(st)) // since what was remembered
		if st.Nlink > 1 {
			f.set(several, true)
			s.names[k.Ino] = []name{{d.id, tagOf(entry)}}
		}
		v.insertLocked(s, k.Ino, f, d, group, true)
		v.isNew(k, st)
		return true
	}
	here, home := name{d.id, tagOf(entry)}, v.homeOf(&f)
	first := f.is(seenOdd) != v.odd()
	f.set(seenOdd, v.odd())
	switch {
	case f.is(unplaced), f.is(nameless), first || st.Nlink == 1 && (f.is(several) || home != d):
		// So far this is its only name.
		f.set(unplaced, false)
		f.set(nameless, false)
		f.set(several, st.Nlink > 1)
		delete(s.names, k.Ino)
		if st.Nlink > 1 {
			s.names[k.Ino] = []name{here}
		}
		f.setKind(kind)
		if here != (name{home.id, f.tag}) {
			v.isNew(k, st)
		}
		f.tag = here.tag
		v.moveLocked(s, k.Ino, &f, d, group)
	case f.is(several):
		s.addName(k.Ino, here)
	case st.Nlink > 1 && here != (name{home.id, f.tag}):
		f.set(several, true)
		s.names[k.Ino] = []name{{home.id, f.tag}, here}
	}
	if !f.is(inUse) || f.is(unsized) {
		v.resizeLocked(&f, int64(st.Blocks), 0)
	}
	v.usedLocked(&f, v.lastUse(st))
	s.files[k.Ino] = f
	return true
}

// drop removes the records of what the scan did not find where it should have been.
func (sc *scan) drop() {
	v := sc.v
	v.dirs.mu.Lock()
	var lostDirs []*Directory
	for _, d := range v.dirs.byID {
		if d != nil && !d.gone && d.seen != sc.number && sc.isGoneLocked(d) {
			lostDirs = append(lostDirs, d)
		}
	}
	for _, d := range lostDirs {
		v.dirs.removeLocked(d)
	}
	lost := make([]bool, len(v.dirs.places.all)) // by place: whether files that were not seen are gone
	for id, p := range v.dirs.places.all {
		if p != nil {
			_, there := p.dir.pathLocked()
			lost[id] = !there || p.dir.listed == sc.number
		}
	}
	v.dirs.mu.Unlock()
	odd := sc.number%2 == 1
	v.tables(func(t *table) {
		for i := range t.shards {
			s := &t.shards[i]
			s.mu.Lock()
			for ino, f := range s.files {
				if f.is(seenOdd) == odd {
					continue
				}
				if !f.is(inUse) && int(f.place) < len(lost) && lost[f.place] {
					v.dropLocked(s, ino, f)
					continue
				}
				f.set(seenOdd, odd) // so that the next scan tells it from those it sees
				s.files[ino] = f
			}
			s.mu.Unlock()
		}
	})
}

// isGoneLocked reports whether the scan did not find a directory, or one above it, where it should have been.
func (sc *scan) isGoneLocked(d *Directory) bool {
	for ; d.parent != nil; d = d.parent {
		if d.gone || d.parent.listed == sc.number && d.seen != sc.number {
			return true
		}
	}
	return false
}

// tables calls fn with the files of each device.
func (v *Inventory) tables(fn func(*table)) {
	fn(v.main)
	v.others.Range(func(_, t any) bool {
		fn(t.(*table))
		return true
	})
}

func (v *Inventory) unreadable(d *Directory, entry string, err error) {
	v.unread.Add(1)
	if more, now := v.pace.Log("unread"); now {
		path, _ := v.Path(d)
		v.Log.Warn("cannot read an entry, so what it takes is not counted", "directory", path, "entry", entry, "err", err, "more", more)
	}
}

// open opens a directory by its path, and checks that it is the one.
func (v *Inventory) open(d *Directory) (int, error) {
	path, ok := v.Path(d)
	if !ok {
		return -1, unix.ENOENT
	}
	fd, err := openBeneath(v.fd, path)
	if err != nil {
		return -1, err
	}
	st, err := statAt(fd, "")
	if err == nil && keyOf(&st) != d.key {
		err = unix.ENOENT
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

// Info is what is known of an entry that was looked at.
type Info struct {
	Key                Key
	SizeBytes, MtimeNs int64
	AllocatedBytes     int64
	Links              uint32
	Regular            bool

	lastUse time.Time // that the file system tells, for Used
}

func (v *Inventory) infoOf(st *unix.Statx_t) Info {
	return Info{
		lastUse: v.lastUse(st),
		Key:     keyOf(st), SizeBytes: int64(st.Size), MtimeNs: st.Mtime.Sec*1e9 + int64(st.Mtime.Nsec),
		AllocatedBytes: int64(min(st.Blocks, mostBlocks)) * blockBytes, Links: st.Nlink, Regular: st.Mode&unix.S_IFMT == unix.S_IFREG,
	}
}

// Names calls fn with the names of the entries of a directory, their inode numbers, and what
// looks at them, as long as it returns true.
func (v *Inventory) Names(d *Directory, fn func(entry string, ino uint64, stat func() (Info, error)) bool) error {
	return v.NamesOf(d, nil, fn)
}

// NamesOf is Names for those entries whose inode numbers are wanted.
func (v *Inventory) NamesOf(d *Directory, wanted func(ino uint64) bool, fn func(entry string, ino uint64, stat func() (Info, error)) bool) error {
	fd, err := v.open(d)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	buf := v.listing.Swap(nil)
	if buf == nil {
		buf = new([listBytes]byte)
	}
	defer v.listing.Store(buf)
	return list(fd, buf[:], wanted, func(e dirent) bool {
		return fn(e.Name, e.Ino, func() (Info, error) {
			if v.Silent != nil {
				v.looked.Add(1)
				v.pacer.wait(context.Background(), v.Silent.PerSecond) // not for long
			}
			st, err := statAt(fd, e.Name)
			return v.infoOf(&st), err
		})
	})
}

// Stat looks at an entry of a directory.
func (v *Inventory) Stat(d *Directory, entry string) (Info, error) {
	fd, err := v.open(d)
	if err != nil {
		return Info{}, err
	}
	defer unix.Close(fd)
	st, err := statAt(fd, entry)
	return v.infoOf(&st), err
}

// Unlink removes an entry of the directory at a path, if it is still that file with that size
// and mtime, as far as can be told. ESTALE: it is not.
func (v *Inventory) Unlink(dir, entry string, want Victim) error {
	return v.unlink(dir, entry, want, false)
}

// Pretend is Unlink, but the file stays; only its record goes.
func (v *Inventory) Pretend(dir, entry string, want Victim) error {
	return v.unlink(dir, entry, want, true)
}

func (v *Inventory) unlink(dir, entry string, want Victim, pretend bool) error {
	fd, err := openBeneath(v.fd, dir)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	held, err := unix.Openat(fd, entry, unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(held) // so that its number is not another file's yet
	st, err := statAt(held, "")
	if err != nil {
		return err
	}
	if i := v.infoOf(&st); i.Key != want.Key || i.SizeBytes != want.SizeBytes || i.MtimeNs != want.MtimeNs || !i.Regular {
		return unix.ESTALE
	}
	if err := v.mayUnlink(held, want.Key, v.infoOf(&st)); err != nil {
		return err
	}
	parent, err := statAt(fd, "")
	if err == nil && !pretend {
		err = unix.Unlinkat(fd, entry, 0)
	}
	if err != nil {
		return err
	}
	// Servers of FUSE may not answer for a file that has no name, or answer as before.
	last := pretend || st.Nlink == 1
	if !last {
		st, err = statAt(held, "")
		last = err == nil && st.Nlink == 0
	}
	v.Removed(want.Key, keyOf(&parent), entry, last)
	return nil
}
