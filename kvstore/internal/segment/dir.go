package segment

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const (
	lockName      = "segments.lock"
	superName     = "segments.super"
	newSuperName  = superName + ".new"
	segmentPrefix = "segment-"
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
	isNew bool // it had no superblock
}

// claim locks a directory, and makes it if there is none. It changes nothing in a directory
// that contains other things.
func claim(path string) (*directory, error) {
	if path == "" {
		return nil, errors.New("segment store: no directory was given")
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, fmt.Errorf("segment store: %w", err)
	}
	if _, err := numbersIn(path); err != nil {
		return nil, err
	}
	lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, fmt.Errorf("segment store: %w", err)
	}
	d := &directory{path: path, lock: lock}
	if err := d.hold(); err != nil {
		_ = lock.Close()
		return nil, err
	}
	return d, nil
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
	super := false
	for _, e := range all {
		n, isSegment := segmentNumber(e.Name())
		switch {
		case isSegment && e.Type().IsRegular():
			numbers = append(numbers, n)
		case e.Name() == superName:
			super = true
		case e.Name() == lockName, e.Name() == newSuperName, e.Name() == "lost+found":
		default:
			return nil, fmt.Errorf("segment store: %s has %q in it, which is not a segment store's; give the store an empty directory", path, e.Name())
		}
	}
	if len(numbers) > 0 && !super {
		return nil, fmt.Errorf("segment store: %s has segments but no %s; empty it to begin anew", path, superName)
	}
	slices.Sort(numbers)
	return numbers, nil
}

// superblock reads the geometry of the directory, or decides it for a new one: segmentBytes
// is the size that the caller wants, 0 for none; then choose decides.
func (d *directory) superblock(l kv.Layout, segmentBytes int64, choose func() int64) (geometry, error) {
	path := filepath.Join(d.path, superName)
	page, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		if segmentBytes == 0 {
			segmentBytes = choose()
		}
		g, err := newGeometry(l, segmentBytes)
		if err == nil {
			d.isNew = true
		}
		return g, err
	}
	if err != nil {
		return geometry{}, fmt.Errorf("segment store: %w", err)
	}
	var super record
	if err := super.decode(superMagic, page); err != nil {
		return geometry{}, fmt.Errorf("segment store: %s: %w; empty the directory to begin anew", path, err)
	}
	if super.layout != l {
		return geometry{}, fmt.Errorf("segment store: %s is for blocks of %d bytes in shards of %d, and blocks of %d in shards of %d were asked for; give them another directory, or empty this one",
			d.path, super.layout.BlockBytes, super.layout.ShardBytes, l.BlockBytes, l.ShardBytes)
	}
	if segmentBytes != 0 && segmentBytes != super.segmentBytes {
		return geometry{}, fmt.Errorf("segment store: %s has segments of %d bytes, and %d were asked for; leave their size out, or empty the directory",
			d.path, super.segmentBytes, segmentBytes)
	}
	return newGeometry(l, super.segmentBytes)
}

// initialise makes an empty directory ours: all at once, by a rename, so that a crash
// leaves it either empty or with a whole superblock.
func (d *directory) initialise(g geometry) error {
	super := record{layout: g.layout, segmentBytes: g.segmentBytes}
	path := filepath.Join(d.path, newSuperName)
	f, err := os.Create(path)
	if err != nil {
		return fmt.Errorf("segment store: %w", err)
	}
	_, err = f.Write(super.encode(superMagic))
	err = errors.Join(err, f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(path, filepath.Join(d.path, superName))
	}
	if err == nil {
		err = d.sync()
	}
	if err != nil {
		return fmt.Errorf("segment store: %w", err)
	}
	return nil
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
	if unix.Statfs(d.path, &s) != nil {
		return -1
	}
	return int64(s.Bavail) * s.Bsize
}
