package segment

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
)

const (
	lockName      = kv3fs.SegmentsLock
	superName     = kv3fs.SegmentsSuper
	newSuperName  = kv3fs.SegmentsNewSuper
	segmentPrefix = kv3fs.SegmentPrefix
)

func segmentName(number uint32) string { return fmt.Sprintf("%s%06d", segmentPrefix, number) }

func segmentNumber(name string) (uint32, bool) {
	digits, ok := strings.CutPrefix(name, segmentPrefix)
	n, err := strconv.ParseUint(digits, 10, 32)
	return uint32(n), ok && err == nil && name == segmentName(uint32(n))
}

// directory is a directory that this process has locked.
type directory struct {
	path  string
	lock  *os.File
	isNew bool // it had neither a superblock nor segments
	made  bool // it was not there

	damage error // of the superblock, which is repaired
}

// claim locks a directory, and makes it if there is none. It changes nothing in a directory
// that contains other things.
func claim(path string) (*directory, error) {
	if path == "" {
		return nil, errors.New("segment store: no directory was given")
	}
	_, missing := os.Lstat(path)
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("segment store: %w", err)
	}
	if _, err := numbersIn(path); err != nil {
		return nil, err
	}
	for {
		lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o644)
		if err != nil {
			return nil, fmt.Errorf("segment store: %w", err)
		}
		d := &directory{path: path, lock: lock, made: errors.Is(missing, os.ErrNotExist)}
		if err := d.hold(); err != nil {
			_ = lock.Close()
			return nil, err
		}
		if d.isHeld() {
			return d, nil
		}
		_ = lock.Close() // an Open that failed has removed it meanwhile
	}
}

// isHeld reports whether the file that is locked is the one that others find.
func (d *directory) isHeld() bool {
	named, err := os.Stat(d.lock.Name())
	if err != nil {
		return false
	}
	ours, err := d.lock.Stat()
	return err == nil && os.SameFile(named, ours)
}

// undo removes the lock, and the directory if it was made for this Open. Nothing else is
// left in it.
func (d *directory) undo() error {
	err := os.Remove(d.lock.Name())
	if d.made {
		err = errors.Join(err, os.Remove(d.path))
	}
	return err
}

// hold locks the directory. The kernel releases the lock when the process ends, however it
// ends.
func (d *directory) hold() error {
	err := unix.Flock(int(d.lock.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	if errors.Is(err, unix.EWOULDBLOCK) {
		who := make([]byte, 200)
		n, _ := d.lock.ReadAt(who, 0)
		return fmt.Errorf("segment store: %s is in use by %s; one process at a time owns it: stop that one, or give this one a directory of its own",
			d.path, strings.TrimSpace("process "+string(who[:n])))
	}
	if err != nil {
		return fmt.Errorf("segment store: locking %s: %w", d.lock.Name(), err)
	}
	if err := d.lock.Truncate(0); err != nil {
		return fmt.Errorf("segment store: %w", err)
	}
	if _, err := fmt.Fprintf(d.lock, "%d (%s)\n", os.Getpid(), filepath.Base(os.Args[0])); err != nil {
		return fmt.Errorf("segment store: %w", err)
	}
	return nil
}

func (d *directory) close() error { return d.lock.Close() }

func (d *directory) file(number uint32) string { return filepath.Join(d.path, segmentName(number)) }

// numbersIn returns the numbers of the segments in a directory. A file that is not ours is
// an error.
func numbersIn(path string) ([]uint32, error) {
	all, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("segment store: %w", err)
	}
	var numbers []uint32
	for _, e := range all {
		n, isSegment := segmentNumber(e.Name())
		switch {
		case isSegment && e.Type().IsRegular():
			numbers = append(numbers, n)
		case e.Name() == superName, e.Name() == lockName, e.Name() == newSuperName, e.Name() == "lost+found":
		default:
			return nil, fmt.Errorf("segment store: %s has %q in it, which is not a segment store's; give the store an empty directory", path, e.Name())
		}
	}
	slices.Sort(numbers)
	return numbers, nil
}

// sync makes names survive a power cut.
func (d *directory) sync() error {
	f, err := os.Open(d.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Sync(); err != nil && !errors.Is(err, unix.EINVAL) {
		return err
	}
	return nil
}

// reserve takes space for a segment's file, so that a full disk is an error now. File
// systems that cannot promise space get a file of that length.
func reserve(f *os.File, sizeBytes int64) error {
	const step = 256 << 20 // so that a signal does not undo all of it
	for at := int64(0); at < sizeBytes; {
		err := unix.Fallocate(int(f.Fd()), 0, at, min(step, sizeBytes-at))
		switch {
		case err == nil:
			at += step
		case errors.Is(err, unix.EINTR):
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOSYS):
			return f.Truncate(sizeBytes)
		default:
			return err
		}
	}
	return f.Truncate(sizeBytes)
}

// freeBytes returns what the file system has left, or -1 where it does not say.
func (d *directory) freeBytes() int64 {
	var s unix.Statfs_t
	if unix.Statfs(d.path, &s) != nil || s.Blocks == 0 {
		return -1
	}
	return int64(s.Bavail) * s.Bsize
}
