package pages

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// openFile opens the page file, or creates it, and returns an error if it is not the right
// one.
func openFile(o *Options) (_ *os.File, l label, err error) {
	if fi, err := os.Stat(o.File); err == nil && !fi.Mode().IsRegular() {
		return nil, l, fmt.Errorf("kvstore: page file %s: it is no plain file; name another path", o.File)
	}
	f, err := os.OpenFile(o.File, os.O_RDWR|os.O_CREATE, 0o600)
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("its directory is missing: make it, or mount what has it (%w)", err)
	}
	if err == nil {
		l, err = prepare(f, o)
	}
	if err != nil {
		f.Close() // harmless if f is nil
		return nil, l, fmt.Errorf("kvstore: page file %s: %w", o.File, err)
	}
	return f, l, nil
}

// prepare labels an empty file, or checks the label. If several processes try at once,
// one does it.
func prepare(f *os.File, o *Options) (l label, err error) {
	if err := lock(f, o.Timeout); err != nil {
		return l, err
	}
	defer func() { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }()
	fi, err := f.Stat()
	if err != nil {
		return l, err
	}
	head := make([]byte, labelBytes)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return l, err
	}
	if bytes.Count(head[:n], []byte{0}) == n { // it is new, or its creation was interrupted
		return newFile(f, fi.Size(), o)
	}
	if l, err = decodeLabel(head[:n]); err == nil {
		err = l.match(o)
	}
	if err == nil && fi.Size() < l.sizeBytes() {
		err = fmt.Errorf("it has %d bytes and must have %d: it was cut short. Remove it, and it is made anew, empty", fi.Size(), l.sizeBytes())
	}
	return l, err
}

// lockEvery is how often to try to lock a file that another process is preparing.
const lockEvery = 20 * time.Millisecond

// lock waits for the lock of a file, at most for the timeout. On a file system without
// locks it does nothing.
func lock(f *os.File, timeout time.Duration) error {
	for ends := time.Now().Add(timeout); ; time.Sleep(lockEvery) {
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == nil, errors.Is(err, unix.ENOSYS), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL):
			return nil
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.EWOULDBLOCK) && time.Now().Before(ends):
		case errors.Is(err, unix.EWOULDBLOCK):
			return fmt.Errorf("another process has it locked for more than %v", timeout)
		default:
			return fmt.Errorf("lock: %w", err)
		}
	}
}

// newFile gives a file its size and then its label. A file without a label, left by an
// interrupted creation, counts as new.
func newFile(f *os.File, sizeBytes int64, o *Options) (l label, err error) {
	if o.CapacityBytes != 0 {
		sizeBytes = o.CapacityBytes + labelBytes
	}
	l = label{rank: o.Rank, namespace: o.Namespace, layout: o.Layout, strideBytes: strideOf(o.Layout)}
	l.pages = min((sizeBytes-labelBytes)/l.strideBytes, maxPages)
	if l.pages < 1 {
		return l, fmt.Errorf("it has no space for a page of %d bytes: raise the capacity, which is %d bytes", l.strideBytes, max(0, sizeBytes-labelBytes))
	}
	_, _ = rand.Read(l.id[:]) // never fails
	err = unix.Fallocate(int(f.Fd()), 0, 0, l.sizeBytes())
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOSYS) {
		err = f.Truncate(l.sizeBytes())
	}
	if err != nil {
		_ = f.Truncate(0)
		return l, fmt.Errorf("allocate %d bytes for it: %w", l.sizeBytes(), err)
	}
	if _, err := f.WriteAt(l.encode(), 0); err != nil {
		return l, err
	}
	return l, f.Sync()
}
