package ringio

import (
	"fmt"
	"os"
	"syscall"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// ErrStale (ENOTCONN): the file belongs to a daemon that is gone. Open it again.
var ErrStale error = stale{}

type stale struct{}

func (stale) Error() string { return "ringio: the daemon behind the file is gone; open it again" }
func (stale) Unwrap() error { return syscall.ENOTCONN }

// staleFor returns an ErrStale that says how the daemon was found to have gone.
func staleFor(why error) error { return fmt.Errorf("%w (%w)", ErrStale, why) }

// fileError returns an error that names the file of a move.
func (m *move) fileError(err error) error {
	return &os.PathError{Op: m.verb(), Path: m.file.Name(), Err: err}
}

func (m *move) verb() string {
	if m.op.Write {
		return "write"
	}
	return "read"
}

func (m *move) abandoned() error {
	return kv.Abandoned(fmt.Sprintf("%s %s: %d bytes at %d", m.verb(), m.file.Name(), len(m.op.Buf), m.op.Offset))
}
