package usrbio

import (
	"errors"
	"fmt"
	"syscall"
)

// ErrNotMounted means that a path or file is not on a 3FS mount.
var ErrNotMounted = errors.New("usrbio: not on a 3FS mount")

// Errors of rings. errors.Is also finds the errno in each.
var (
	// ErrRingFull (EAGAIN): every entry is in use. Nothing was queued; wait for
	// completions, then prepare again.
	ErrRingFull = newErrno("usrbio: ring full", syscall.EAGAIN)

	// ErrDaemonGone (ENOTCONN): the daemon stopped, or no longer knows the
	// registration. Requests in flight will not complete. Open the
	// Mount again, and close this one.
	ErrDaemonGone = newErrno("usrbio: daemon gone", syscall.ENOTCONN)

	// ErrProtocol (EPROTO): the daemon wrote something impossible into the ring: a
	// marker out of range, or a completion that belongs to no request. The ring is not
	// used any more; its requests stay in flight, as after a wait that ended early.
	ErrProtocol = newErrno("usrbio: daemon broke the ring protocol", syscall.EPROTO)
)

// Why Prepare refuses a request; values, so that a refusal allocates nothing.
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
	errNoSpace    error = &errno{"usrbio: wait: no space for completions", syscall.EINVAL}
)

// errno is an errno with a text.
type errno struct {
	text string
	no   syscall.Errno
}

func newErrno(text string, no syscall.Errno) error { return &errno{text, no} }

func (e *errno) Error() string { return e.text }
func (e *errno) Unwrap() error { return e.no }

// explain names the operation and recognises the errnos that the kernel returns when
// a FUSE daemon has stopped.
func explain(op string, err error) error {
	if daemonGone(err) {
		return fmt.Errorf("usrbio: %s: %w (%w)", op, ErrDaemonGone, err)
	}
	if err == syscall.ETIMEDOUT {
		return fmt.Errorf("usrbio: %s: the daemon does not answer: %w", op, err)
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
