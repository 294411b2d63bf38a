package journal

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"
	"time"
)

// A file gets its name once it is complete. So what has the name and is empty, or has no
// bucket, was damaged: it is not a beginning.

// unfinished returns the name of a file that is being made.
func unfinished(path string) string { return path + ".new" }

// openFile opens the file at path and locks it; if there is none, it makes one that has
// no name yet (fresh).
func openFile(path string, timeout time.Duration) (f *os.File, fresh bool, err error) {
	const attempts = 10 // each fails only when another process has just finished one
	for range attempts {
		f, err := openLocked(path, os.O_RDWR, timeout)
		if !errors.Is(err, fs.ErrNotExist) {
			return f, false, err
		}
		f, err = openLocked(unfinished(path), os.O_RDWR|os.O_CREATE, timeout)
		if err != nil {
			return nil, false, err
		}
		ours := isAt(f, unfinished(path))
		_, err = os.Stat(path)
		if ours && errors.Is(err, fs.ErrNotExist) {
			return f, true, nil
		}
		if ours {
			err = os.Remove(unfinished(path))
		}
		if err := errors.Join(err, f.Close()); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, false, err
		}
	}
	return nil, false, fmt.Errorf("%s: other processes keep making it", path)
}

// isAt reports whether a file still has a name.
func isAt(f *os.File, path string) bool {
	mine, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(mine, there)
}

// lockPoll is how often a lock is tried again.
const lockPoll = 20 * time.Millisecond

// openLocked opens a file and locks it as bbolt does, so that it excludes other versions
// of kv3fs, too. The lock belongs to the open file: bbolt, which gets it, has the lock.
func openLocked(path string, flag int, timeout time.Duration) (*os.File, error) {
	f, err := os.OpenFile(path, flag, 0o600)
	if err != nil {
		return nil, err
	}
	for end := time.Now().Add(timeout); ; time.Sleep(lockPoll) {
		err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		switch {
		case err == nil:
			return f, nil
		case errors.Is(err, syscall.EINTR):
			continue
		case !errors.Is(err, syscall.EWOULDBLOCK):
			err = fmt.Errorf("lock %s: %w", path, err)
		case time.Now().Before(end):
			continue
		default:
			err = fmt.Errorf("%s is in use by %s", path, holder(f))
		}
		return nil, errors.Join(err, f.Close())
	}
}
