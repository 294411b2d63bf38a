// Package sums keeps the checksums of blocks beside a directory whose layout has no
// room for them, as UCM's has none: in .kv3fs-sums, a log for each process that
// writes. A log only grows; what it says is said before the block can be seen; and
// it may be missing or lost at any time, which makes blocks unverified and nothing
// wrong.
//
// A process owns one log, by flock, and reads those of the others. A log whose owner
// is gone gets the next process that wants one. A record is valid until one that
// forgets it, in whatever log and order the two are read.
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
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// DirName is the directory's name, below that of the blocks.
const DirName = ".kv3fs-sums"

const (
	suffix = ".log"

	// goneAfter: a living process touches its log much more often. For the logs of
	// other hosts, of which flock may know nothing.
	goneAfter = 24 * time.Hour
)

// Book is all logs of a directory. Any number of goroutines may use it; its calls
// go to the file system and may hang where it does.
type Book struct {
	dir   string
	shape Shape

	writing sync.Mutex // held while own's file grows, before mu

	mu      sync.RWMutex
	own     uint16
	logs    []*log // nil where one is gone
	index   index
	asOf    time.Time // the logs have been read as they were then, or later
	settled int64     // bytes of own after it was last compacted
	closed  bool
	renewed int // times that the file system was found replaced
}

// Open opens the book of the directory root, whose blocks are to have that shape.
func Open(root string, shape Shape) (*Book, error) {
	b := &Book{dir: filepath.Join(root, DirName), shape: shape, index: newIndex()}
	if err := b.load(); err != nil {
		b.Close()
		return nil, err
	}
	return b, nil
}

// load finds a log of this process's own and reads all. It is called without
// concurrency.
func (b *Book) load() error {
	if err := os.Mkdir(b.dir, 0o775); err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	own, err := b.acquire()
	if err != nil {
		return fmt.Errorf("a log of checksums in %s: %w", b.dir, err)
	}
	b.index, b.logs, b.own = newIndex(), []*log{own}, 0
	if err := own.read(func(at int64, r *record) { b.learn(b.own, at, r) }); err != nil {
		return err
	}
	if err := own.mend(); err != nil {
		return err
	}
	b.settled = own.end
	return b.refresh(time.Now())
}

// acquire takes over a log that nobody has any more, or makes one.
func (b *Book) acquire() (*log, error) {
	host, err := hostName()
	if err != nil {
		return nil, err
	}
	names, err := b.names()
	if err != nil {
		return nil, err
	}
	for _, name := range names {
		if !strings.HasPrefix(name, host+"-") {
			continue
		}
		if l := b.tryOwn(name); l != nil {
			return l, nil
		}
	}
	for range 100 {
		fresh := fmt.Sprintf("%s-%08x%s", host, rand.Uint32(), suffix)
		// Of those that want a log of a host that is gone, one is first to rename it.
		if !b.inherit(names, fresh) {
			f, err := os.OpenFile(filepath.Join(b.dir, fresh), os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o644)
			if err != nil {
				return nil, err
			}
			f.Close()
		}
		if l := b.tryOwn(fresh); l != nil {
			return l, nil
		}
	}
	return nil, errors.New("none can be locked: does this file system know flock?")
}

// tryOwn locks a log, unless somebody has it.
func (b *Book) tryOwn(name string) *log {
	path := filepath.Join(b.dir, name)
	l, err := openLog(path, os.O_RDWR)
	if err != nil {
		return nil
	}
	// It may have been replaced, by its owner, between open and lock.
	if ino, _, err := inode(path); !l.lock() || err != nil || ino != l.ino {
		l.f.Close()
		return nil
	}
	l.name = name
	return l
}

// inherit gives a log of a host that is gone a name of this host.
func (b *Book) inherit(names []string, as string) bool {
	for _, name := range names {
		path := filepath.Join(b.dir, name)
		if _, mtime, err := inode(path); err == nil && time.Since(mtime) > goneAfter &&
			os.Rename(path, filepath.Join(b.dir, as)) == nil {
			return true
		}
	}
	return false
}

// hostName tells this boot of this machine from others.
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

func (b *Book) names() ([]string, error) {
	entries, err := os.ReadDir(b.dir)
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

// learn takes a record into the index.
func (b *Book) learn(log uint16, at int64, r *record) {
	if !r.forget {
		b.index.add(r, log, at)
		return
	}
	b.index.forgotten[r.stamp] = struct{}{}
	entries := b.index.entries(r.key)
	kept := slices.DeleteFunc(slices.Clone(entries), func(e entry) bool {
		was, err := b.logs[e.log].at(e.at, b.index.shapes[e.shape].Shards)
		return err == nil && was.stamp == r.stamp
	})
	if len(kept) < len(entries) {
		b.index.set(r.key, kept)
	}
}

// refresh reads what others have written. It is called without concurrency.
func (b *Book) refresh(now time.Time) error {
	names, err := b.names()
	if err != nil {
		return err
	}
	for i, l := range b.logs {
		if l != nil && uint16(i) != b.own && !slices.Contains(names, l.name) {
			b.forgetLog(uint16(i))
		}
	}
	for _, name := range names {
		err := b.refreshLog(name)
		// One that has just gone, or that another user keeps to himself, says nothing.
		if err != nil && !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrPermission) {
			return err
		}
	}
	b.asOf = now
	return nil
}

func (b *Book) refreshLog(name string) error {
	i := slices.IndexFunc(b.logs, func(l *log) bool { return l != nil && l.name == name })
	if i >= 0 && uint16(i) == b.own {
		return nil
	}
	path := filepath.Join(b.dir, name)
	if i >= 0 {
		ino, _, err := inode(path)
		if err != nil {
			return err
		}
		if ino != b.logs[i].ino { // compacted, or another one
			b.forgetLog(uint16(i))
			i = -1
		}
	}
	if i < 0 {
		l, err := openLog(path, os.O_RDONLY)
		if err != nil {
			return err
		}
		l.name = name
		if i = b.place(l); i < 0 {
			l.f.Close()
			return nil
		}
	}
	return b.logs[i].read(func(at int64, r *record) { b.learn(uint16(i), at, r) })
}

// place finds a number for a log, or -1.
func (b *Book) place(l *log) int {
	if i := slices.Index(b.logs, nil); i >= 0 {
		b.logs[i] = l
		return i
	}
	if len(b.logs) > math.MaxUint16 {
		return -1
	}
	b.logs = append(b.logs, l)
	return len(b.logs) - 1
}

func (b *Book) forgetLog(i uint16) {
	b.index.drop(i)
	b.logs[i].f.Close()
	b.logs[i] = nil
}

// Touch says that the owner of this process's log is alive. Call it every hour.
func (b *Book) Touch() error {
	b.mu.RLock()
	own, err := b.ownLog()
	b.mu.RUnlock()
	if err != nil {
		return err
	}
	return os.Chtimes(filepath.Join(b.dir, own.name), time.Time{}, time.Now())
}

// Close gives the log to who wants it.
func (b *Book) Close() error {
	b.writing.Lock()
	defer b.writing.Unlock()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	return b.closeLogs()
}

func (b *Book) closeLogs() error {
	var errs []error
	for _, l := range b.logs {
		if l != nil {
			errs = append(errs, l.f.Close())
		}
	}
	b.logs = nil
	b.index = newIndex()
	return errors.Join(errs...)
}

// usable says why there are no logs. A lock is held.
func (b *Book) usable() error {
	switch {
	case b.closed:
		return kv.ErrClosed
	case b.logs == nil: // they could not be opened again, at the last attempt
		return fmt.Errorf("the logs of checksums in %s: %w", b.dir, syscall.ESTALE)
	}
	return nil
}

// ownLog is this process's log. A lock is held.
func (b *Book) ownLog() (*log, error) {
	if err := b.usable(); err != nil {
		return nil, err
	}
	return b.logs[b.own], nil
}
