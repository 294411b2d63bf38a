// Package sums keeps the checksums of blocks in logs beside a directory whose layout,
// such as UCM's, has no place for them. The directory .kv3fs-sums holds one log for each
// process that writes. A log only grows, apart from compaction, and a block is recorded
// before it can be seen. Logs may be damaged or lost at any time. Blocks then have no
// record, and their mark tells them from those of writers that record nothing, see Mark.
//
// A process owns one log, by flock, and reads those of the others. When a process has
// ended, the next one that wants a log takes over its log. A record is valid until
// another record makes it void, whichever log that is in and whichever of the two is
// read first.
package sums

import (
	"errors"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// DirName is the directory's name, below that of the blocks.
const DirName = kv3fs.SumsDir

const (
	suffix = ".log"

	// goneAfter is how old the log of another host must be for its owner to count as
	// gone; flock may know nothing of other hosts. A living owner touches its log much
	// more often.
	goneAfter = 24 * time.Hour
)

// Logs are all checksum logs of a directory. Any number of goroutines may use them. Calls
// go to the file system and hang when it does.
type Logs struct {
	dir   string
	shape Shape

	writing sync.Mutex // held while own's file grows, before mu

	mu      sync.RWMutex
	own     uint16
	logs    []*log // nil where one is gone
	index   index
	asOf    time.Time // everything that was in the logs then has been read
	unread  error     // why what was read is perhaps not all of it
	settled int64     // bytes of own after it was last compacted, by any process; 0: never
	closed  bool
	renewed int // how often the logs were opened again

	unreadSince time.Time   // something in own, when a compaction last found it so; of who compacts
	compacting  bool        // writing guards it
	marked      atomic.Bool // see OfOthers
}

// Open opens the logs of the directory root. Blocks that are recorded have that shape.
func Open(root string, shape Shape) (*Logs, error) {
	return OpenIn(filepath.Join(root, DirName), shape)
}

// OpenIn is Open for the directory of the logs itself, which it makes.
func OpenIn(dir string, shape Shape) (*Logs, error) {
	ls := &Logs{dir: dir, shape: shape, index: newIndex()}
	if err := ls.load(); err != nil {
		_ = ls.Close() // err is the first error
		return nil, err
	}
	return ls, nil
}

// load gets a log of this process's own and reads all logs. Nothing else may use them
// meanwhile.
func (ls *Logs) load() error {
	switch err := os.Mkdir(ls.dir, 0o775); {
	case err == nil:
		if err := ls.declareMarked(); err != nil {
			return err
		}
	case !errors.Is(err, fs.ErrExist):
		return err
	}
	own, err := ls.acquire()
	if err != nil {
		return fmt.Errorf("open a checksum log in %s: %w", ls.dir, err)
	}
	ls.index, ls.logs, ls.own = newIndex(), []*log{own}, 0
	ls.settled = 0
	if err := own.read(ls.learnOwn); err != nil {
		return err
	}
	if err := own.mend(); err != nil {
		return err
	}
	return ls.refresh(time.Now())
}

// acquire takes over a log without an owner, or creates one.
func (ls *Logs) acquire() (*log, error) {
	host, err := hostName()
	if err != nil {
		return nil, err
	}
	names, err := ls.names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, host+"-") {
			continue
		}
		if l := ls.tryOwn(name); l != nil {
			return l, nil
		}
	}
	for range 100 {
		fresh := fmt.Sprintf("%s-%08x%s", host, rand.Uint32(), suffix)
		// Of the processes that want the log of a host that is gone, one renames it first.
		if !ls.inherit(names, fresh) {
			f, err := os.OpenFile(filepath.Join(ls.dir, fresh), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644|Mark)
			if err != nil {
				return nil, err
			}
			f.Close()
		}
		if l := ls.tryOwn(fresh); l != nil {
			return l, nil
		}
	}
	return nil, errors.New("no file there can be locked: use a file system that supports flock")
}

// tryOwn locks a log. It returns nil if another process has locked it.
func (ls *Logs) tryOwn(name string) *log {
	path := filepath.Join(ls.dir, name)
	l, err := openLog(path, os.O_RDWR)
	if err != nil {
		return nil
	}
	// Its owner may have replaced it between open and lock.
	if ino, _, err := inode(path); !l.lock() || err != nil || ino != l.ino {
		l.f.Close()
		return nil
	}
	l.name = name
	return l
}

// inherit renames a log of a host that is gone, and reports whether there was one.
func (ls *Logs) inherit(names []string, as string) bool {
	for _, name := range names {
		path := filepath.Join(ls.dir, name)
		if _, mtime, err := inode(path); err == nil && time.Since(mtime) > goneAfter &&
			os.Rename(path, filepath.Join(ls.dir, as)) == nil {
			return true
		}
	}
	return false
}

// hostName returns a name that is unique to this boot of this machine.
func hostName() (string, error) {
	id, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", err
	}
	return strings.ReplaceAll(strings.TrimSpace(string(id)), "-", ""), nil
}

func inode(path string) (ino uint64, mtime time.Time, err error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return 0, time.Time{}, err
	}
	return st.Ino, time.Unix(st.Mtim.Unix()), nil
}

func (ls *Logs) names() ([]string, error) {
	entries, err := os.ReadDir(ls.dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), suffix) && e.Type().IsRegular() {
			names = append(names, e.Name())
		}
	}
	return names, nil
}

// learnOwn is learn for this process's log.
func (ls *Logs) learnOwn(at int64, r *record) {
	if r.edge {
		ls.settled = at
	}
	ls.learn(ls.own, at, r)
}

// learn enters a record into the index.
func (ls *Logs) learn(log uint16, at int64, r *record) {
	switch {
	case r.edge:
		return
	case !r.forget:
		ls.index.add(r, log, at)
		return
	}
	ls.index.forgotten[r.stamp] = struct{}{}
	entries := ls.index.entries(r.key)
	kept := slices.DeleteFunc(slices.Clone(entries), func(e entry) bool {
		was, err := ls.logs[e.log].at(e.at, r.key, ls.index.shapes[e.shape])
		return err == nil && was.stamp == r.stamp
	})
	if len(kept) < len(entries) {
		ls.index.set(r.key, kept)
	}
}

// refresh reads what others have written. mu is held, or nothing else uses the logs yet.
func (ls *Logs) refresh(now time.Time) error {
	names, err := ls.names()
	if err != nil {
		return err
	}
	for i, l := range ls.logs {
		if l != nil && uint16(i) != ls.own && !slices.Contains(names, l.name) {
			ls.forgetLog(uint16(i))
		}
	}
	own := ls.logs[ls.own]
	if err := own.readGap(now, func(at int64, r *record) {
		if at < own.end {
			ls.learnOwn(at, r)
		}
	}); err != nil {
		return err
	}
	ls.unread = nil
	for _, name := range names {
		err := ls.refreshLog(name)
		if kv.IsUnreadable(err) {
			ls.unread = err
		}
		// A log that has just gone, or that this user or the disk cannot read, is left out.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) && !kv.IsUnreadable(err) {
			return err
		}
	}
	for _, l := range ls.logs {
		if l != nil && l.gap.mayPass() {
			ls.unread = fmt.Errorf("read %s: %w at %d", l.f.Name(), errUnread, l.gap.at)
		}
	}
	ls.asOf = now
	return nil
}

func (ls *Logs) refreshLog(name string) error {
	i := slices.IndexFunc(ls.logs, func(l *log) bool { return l != nil && l.name == name })
	if i >= 0 && uint16(i) == ls.own {
		return nil
	}
	path := filepath.Join(ls.dir, name)
	if i >= 0 {
		ino, _, err := inode(path)
		if err != nil {
			return err
		}
		if ino != ls.logs[i].ino { // it was compacted, or is another log
			ls.forgetLog(uint16(i))
			i = -1
		}
	}
	if i < 0 {
		l, err := openLog(path, os.O_RDONLY)
		if err != nil {
			return err
		}
		l.name = name
		if i = ls.place(l); i < 0 {
			l.f.Close()
			return nil
		}
	}
	learn := func(at int64, r *record) { ls.learn(uint16(i), at, r) }
	if err := ls.logs[i].readGap(time.Now(), learn); err != nil {
		return err
	}
	return ls.logs[i].read(learn)
}

// place gives a log a number, or returns -1 when there is none left.
func (ls *Logs) place(l *log) int {
	if i := slices.Index(ls.logs, nil); i >= 0 {
		ls.logs[i] = l
		return i
	}
	if len(ls.logs) > math.MaxUint16 {
		return -1
	}
	ls.logs = append(ls.logs, l)
	return len(ls.logs) - 1
}

func (ls *Logs) forgetLog(i uint16) {
	ls.index.drop(i)
	ls.logs[i].f.Close()
	ls.logs[i] = nil
}

// Touch shows other hosts that the owner of this process's log is alive. Call it every
// hour.
func (ls *Logs) Touch() error {
	ls.mu.RLock()
	own, err := ls.ownLog()
	ls.mu.RUnlock()
	if err != nil {
		return err
	}
	return os.Chtimes(filepath.Join(ls.dir, own.name), time.Time{}, time.Now())
}

// Close closes all logs. Another process can then take over this process's own.
func (ls *Logs) Close() error {
	ls.writing.Lock()
	defer ls.writing.Unlock()
	ls.mu.Lock()
	defer ls.mu.Unlock()
	ls.closed = true
	return ls.closeLogs()
}

func (ls *Logs) closeLogs() error {
	var errs []error
	for _, l := range ls.logs {
		if l != nil {
			errs = append(errs, l.f.Close())
		}
	}
	ls.logs = nil
	ls.index = newIndex()
	return errors.Join(errs...)
}

// usable returns an error if no logs are open. One of the locks is held.
func (ls *Logs) usable() error {
	switch {
	case ls.closed:
		return kv.ErrClosed
	case ls.logs == nil: // the last attempt to open them again has failed
		return fmt.Errorf("checksum logs in %s: %w", ls.dir, syscall.ESTALE)
	}
	return nil
}

// ownLog returns this process's log. One of the locks is held.
func (ls *Logs) ownLog() (*log, error) {
	if err := ls.usable(); err != nil {
		return nil, err
	}
	return ls.logs[ls.own], nil
}
