package usrbio

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrNotMounted says that a path or file is not on a 3FS mount.
var ErrNotMounted = errors.New("usrbio: not on a 3FS mount")

// Errors of rings. errors.Is finds the errno in each as well.
var (
	// ErrRingFull (EAGAIN): every entry is in use. Wait for completions, then
	// prepare again. Nothing was queued.
	ErrRingFull error = &errno{"usrbio: ring full", syscall.EAGAIN}

	// ErrDaemonGone (ENOTCONN): the daemon stopped, or no longer knows the
	// registration. Requests in flight will not complete. Close the Mount and
	// Open it again.
	ErrDaemonGone error = &errno{"usrbio: daemon gone", syscall.ENOTCONN}

	// ErrProtocol (EPROTO): the daemon wrote something into the ring that cannot
	// be: a marker out of range, a completion nobody asked for. The ring is not
	// used any more; what it had in flight is as after a wait that ended early.
	ErrProtocol error = &errno{"usrbio: daemon broke the ring protocol", syscall.EPROTO}
)

// What Prepare refuses, as values so that a refusal allocates nothing.
var (
	errEmpty      error = &errno{"usrbio: request of no bytes", syscall.EINVAL}
	errFileRange  error = &errno{"usrbio: file offset out of range", syscall.EINVAL}
	errIovRange   error = &errno{"usrbio: range is not inside the iov", syscall.EINVAL}
	errBlock      error = &errno{"usrbio: range crosses a block of the iov", syscall.EINVAL}
	errOtherMount error = &errno{"usrbio: file, iov and ring are not of one mount", syscall.EINVAL}
	errFileClosed error = &errno{"usrbio: file is closed", syscall.EBADF}
	errIovClosed  error = &errno{"usrbio: iov is closed", syscall.EINVAL}
	errReadOnly   error = &errno{"usrbio: file was opened read-only", syscall.EACCES}
	errWriteOnly  error = &errno{"usrbio: file was opened write-only", syscall.EACCES}
	errNoRoom     error = &errno{"usrbio: no room for completions", syscall.EINVAL}
)

// errno is an errno that says what it is about.
type errno struct {
	text string
	no   syscall.Errno
}

func (e *errno) Error() string { return e.text }
func (e *errno) Unwrap() error { return e.no }

// explain names the operation, and recognises the errnos with which the kernel
// answers for a FUSE daemon that is no more.
func explain(op string, err error) error {
	if daemonGone(err) {
		return fmt.Errorf("usrbio: %s: %w (%w)", op, ErrDaemonGone, err)
	}
	return fmt.Errorf("usrbio: %s: %w", op, err)
}

func daemonGone(err error) bool {
	for _, no := range []syscall.Errno{syscall.ENOTCONN, syscall.ECONNABORTED, syscall.ECONNREFUSED, syscall.ENODEV, syscall.ESTALE} {
		if errors.Is(err, no) {
			return true
		}
	}
	return false
}
