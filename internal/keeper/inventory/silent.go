package inventory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Silent is for a directory of which no event tells, because others serve and use it. Sizes and uses
// are then those that the file system shows: Scan and Refresh find them.
type Silent struct {
	// Atime: the later of a file's atime and mtime is its last use; otherwise its mtime is.
	Atime bool

	// PerSecond bounds how many entries scans look at in a second, so that a server of many hosts does not
	// suffer. 0: no bound.
	PerSecond int

	// RefreshEvery is how often Refresh is called, and WholeEvery in what time it has read every directory
	// whole, a part of them each time. 0: it reads none whole.
	RefreshEvery, WholeEvery time.Duration

	// NewFor returns for how long a file is remembered as new, which may change. nil: not.
	NewFor func() time.Duration

	// May is asked right before each file is removed, and an error keeps it; nil: all may.
	May func() error
}

// lastUse returns the time of a file's last use that its status tells, by the wall clock of who
// wrote it. Where events come, nobody has seen the last use of a file that a scan finds. One from
// the future is new.
func (v *Inventory) lastUse(st *unix.Statx_t) time.Time {
	last := time.Unix(st.Mtime.Sec, int64(st.Mtime.Nsec))
	if v.Silent != nil && v.Silent.Atime {
		if at := time.Unix(st.Atime.Sec, int64(st.Atime.Nsec)); at.After(last) {
			last = at
		}
	}
	return last
}

// usedSlack is how much later a time must be to be another use's: clocks count in seconds, and not
// all servers do better.
const usedSlack = 2

// mostAhead is how far ahead other hosts' clocks may be. Times further ahead say nothing: files that have
// them would always have been used just now.
const mostAhead = time.Hour

// Used sees whether a file has been used since its record says, by its status, and counts that.
func (v *Inventory) Used(k Key, i Info) bool {
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[k.Ino]
	if !ok || !v.usedLocked(&f, i.lastUse) {
		return false
	}
	s.files[k.Ino] = f
	return true
}

func (v *Inventory) usedLocked(f *file, last time.Time) bool {
	if v.Silent == nil || time.Since(last) < -mostAhead {
		return false
	}
	at := v.back(time.Since(last))
	if at <= f.lastUse || at-f.lastUse < usedSlack {
		return false
	}
	// Inventory.Uses does not hear of it: such uses are found late, in no order, and not all of them.
	f.lastUse = at
	f.uses = min(f.uses, mostUses-1) + 1
	return true
}

// mayUnlink is asked right before a file is removed, which is open as an O_PATH descriptor. EBUSY: it was used
// since, or somebody on this host has it open; who has on another one, nobody can tell.
func (v *Inventory) mayUnlink(held int, k Key, i Info) error {
	if v.Silent == nil {
		return nil
	}
	if v.Used(k, i) || openElsewhere(held) {
		return unix.EBUSY
	}
	if v.Silent.May != nil {
		return v.Silent.May()
	}
	return nil
}

// openElsewhere reports whether another process has a file open, as far as the file system has leases.
func openElsewhere(held int) bool {
	fd, err := unix.Open(fmt.Sprintf("/proc/self/fd/%d", held), unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false // what cannot be opened cannot be told, and what cannot be removed, unlink says
	}
	defer unix.Close(fd)
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_WRLCK)
	if err == nil {
		_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return err == unix.EAGAIN
}

// pacer spreads calls over time.
type pacer struct {
	mu   sync.Mutex
	next time.Time
}

// paceBurst is how far calls may run ahead, so that not each of them has to sleep.
const paceBurst = 50 * time.Millisecond

// wait returns once one more call is due, or the context has ended.
func (p *pacer) wait(ctx context.Context, perSecond int) {
	if perSecond <= 0 {
		return
	}
	p.mu.Lock()
	now := time.Now()
	if early := now.Add(-paceBurst); p.next.Before(early) {
		p.next = early
	}
	p.next = p.next.Add(time.Second / time.Duration(perSecond))
	left := p.next.Sub(now)
	p.mu.Unlock()
	if left <= 0 {
		return
	}
	t := time.NewTimer(left)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// Looks returns how many entries scans have looked at.
func (v *Inventory) Looks() int64 { return v.looked.Load() }

// pace waits until a scan may look at one more entry.
func (sc *scan) pace() {
	sc.v.looked.Add(1)
	if sc.v.Silent != nil {
		sc.v.pacer.wait(sc.ctx, sc.v.Silent.PerSecond)
	}
}

// growing are files that may be being written: new ones, and those whose size has changed lately. It is the
// scanner's, under Inventory.scanning.
type growing map[Key]growth

type growth struct {
	dir    *Directory
	name   string
	blocks uint64
	bytes  uint64
	same   int // how often in a row it was like this
}

const (
	// grownAfter is how many Refreshes in a row must find a file unchanged before it is taken for whole.
	grownAfter = 3

	// youngFor is how new a file must be for the first scan to take it for one that may grow.
	youngFor = time.Hour

	mostGrowing = 1 << 16 // beyond that, only the next Scan helps
)

// note has Refresh look at a file again that was found like this.
func (sc *scan) note(k Key, d *Directory, entry string, st *unix.Statx_t) {
	v := sc.v
	if v.Silent == nil {
		return
	}
	g, ok := v.growing[k]
	switch {
	case !ok && !v.scanned.Load() && time.Since(time.Unix(st.Mtime.Sec, 0)) > youngFor:
		return
	case !ok && len(v.growing) >= mostGrowing:
		return
	case ok && g.blocks == st.Blocks && g.bytes == st.Size && g.dir == d && g.name == entry:
		if g.same++; g.same >= grownAfter {
			delete(v.growing, k)
			return
		}
	default:
		g = growth{dir: d, name: entry, blocks: st.Blocks, bytes: st.Size}
	}
	v.growing[k] = g
}

// stamp remembers what a directory's times were before it was read.
func (sc *scan) stamp(fd int, d *Directory) {
	v := sc.v
	if v.Silent == nil {
		return
	}
	st, err := statAt(fd, "")
	if err != nil {
		d.stamp, d.settled = dirStamp{}, false
		return
	}
	// What changes within the same tick as this reading leaves the same time: one that has changed is
	// read again until it has not for longer than a tick.
	if is := stampOf(&st); d.stamp != is {
		d.stamp, d.stamped = is, v.Now()
	}
	d.settled = v.Now()-d.stamped > longestTick
}

// longestTick is in how many seconds clocks of file systems count: FAT's do in 2.
const longestTick = 2

// dirStamp is what changes with the entries of a directory.
type dirStamp struct{ mtimeNs, ctimeNs int64 }

func stampOf(st *unix.Statx_t) dirStamp {
	return dirStamp{st.Mtime.Sec*1e9 + int64(st.Mtime.Nsec), st.Ctime.Sec*1e9 + int64(st.Ctime.Nsec)}
}

// Refresh makes the records agree with what has changed since the last Scan or Refresh, as far as directories'
// times tell: it reads those that have changed, and looks at the files that are new there or may be growing.
// It costs a look at each directory. The directories whose turn it is it reads whole, and returns: it looks at all files
// there. Before a Scan has ended it does nothing.
func (v *Inventory) Refresh(ctx context.Context) (whole []*Directory, err error) {
	v.scanning.Lock()
	defer v.scanning.Unlock()
	if v.Silent == nil || !v.scanned.Load() {
		return nil, nil
	}
	v.ageNewcomers()
	sc := &scan{v: v, ctx: ctx, number: v.scans.Add(1), partly: true}
	all := v.Below(v.dirs.root)
	whole = v.due(all)
	for _, d := range whole {
		d.reread, d.whole = sc.number, v.Now()
		sc.enqueue(d)
	}
	for _, d := range all {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if d.reread != sc.number && sc.hasChanged(d) {
			sc.enqueue(d)
		}
	}
	if err := sc.run(ctx); err != nil {
		return nil, err
	}
	if err := sc.lookAtGrowing(ctx); err != nil {
		return nil, err
	}
	sc.drop()
	return whole, nil
}

// due returns the directories that are to be read whole now: those for which it is longest ago, and no more than twice as
// many as it takes for all to have their turn.
func (v *Inventory) due(all []*Directory) (due []*Directory) {
	every, whole := v.Silent.RefreshEvery, v.Silent.WholeEvery
	if every <= 0 || whole <= 0 {
		return nil
	}
	now := v.Now()
	for _, d := range all {
		if int64(now)-int64(d.whole) >= int64(whole/time.Second) {
			due = append(due, d)
		}
	}
	slices.SortFunc(due, func(a, b *Directory) int { return cmp.Compare(a.whole, b.whole) })
	most := int(min(1, 2*every.Seconds()/whole.Seconds()) * float64(len(all)))
	return due[:min(len(due), most+1)]
}

// hasChanged reports whether a directory has to be read again. It may follow a symbolic link that somebody
// has put in the way: whoever reads the directory does not.
func (sc *scan) hasChanged(d *Directory) bool {
	path, there := sc.v.Path(d)
	if !there {
		return false
	}
	if !d.settled {
		return true
	}
	sc.pace()
	st, err := statAt(sc.v.fd, path)
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR):
		return false // the directory above it has changed
	case err != nil:
		return true // reading it tells why
	}
	return keyOf(&st) == d.key && stampOf(&st) != d.stamp
}

// enqueue has a directory read once.
func (sc *scan) enqueue(d *Directory) {
	sc.v.dirs.mu.Lock()
	defer sc.v.dirs.mu.Unlock()
	sc.enqueueLocked(d)
}

func (sc *scan) enqueueLocked(d *Directory) {
	if d.queued != sc.number {
		d.queued = sc.number
		sc.queue = append(sc.queue, d)
	}
}

// known reports whether an entry of d is a file that a Refresh need not look at, and marks it as seen.
func (sc *scan) known(d *Directory, e dirent) bool {
	v := sc.v
	if !sc.partly || e.Type != unix.S_IFREG || d.reread == sc.number {
		return false
	}
	k := Key{v.key.Dev, e.Ino}
	if _, grows := v.growing[k]; grows {
		return false
	}
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	f, ok := s.files[k.Ino]
	if !ok || v.homeOf(&f) != d || f.tag != tagOf(e.Name) || f.flags&(unsized|nameless|several|unplaced) != 0 {
		return false
	}
	f.set(seenOdd, v.odd())
	s.files[k.Ino] = f
	return true
}

// lookAtGrowing looks at the files that may be growing and whose directories were not read.
func (sc *scan) lookAtGrowing(ctx context.Context) error {
	v := sc.v
	byDir := map[*Directory][]string{}
	for k, g := range v.growing {
		v.dirs.mu.RLock()
		read := g.dir.listed == sc.number
		_, there := g.dir.pathLocked()
		v.dirs.mu.RUnlock()
		switch {
		case !there:
			delete(v.growing, k)
		case !read:
			byDir[g.dir] = append(byDir[g.dir], g.name)
		case !v.has(k):
			delete(v.growing, k) // it was renamed over or removed
		}
	}
	for d, names := range byDir {
		fd, err := v.open(d)
		if err != nil {
			continue // its own listing will tell
		}
		for _, name := range names {
			if ctx.Err() != nil {
				break
			}
			sc.entry(fd, d, dirent{Name: name, Type: unix.S_IFREG})
		}
		unix.Close(fd)
	}
	return ctx.Err()
}

func (v *Inventory) has(k Key) bool {
	s := v.shard(k)
	s.mu.Lock()
	defer s.mu.Unlock()
	_, ok := s.files[k.Ino]
	return ok
}
