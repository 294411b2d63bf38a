package ringio

import (
	"context"
	"errors"
	"os"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/usrbio"
)

// file is an open file of one connection.
type file struct {
	*os.File
	c *conn
	f *usrbio.File
}

// Size asks the daemon, past the kernel's cached attributes: the kernel does not see what
// goes through rings.
func (f *file) Size() (int64, error) {
	sizeBytes, err := askSize(f.File)
	if err != nil {
		if f.c.dead() || errors.Is(err, unix.ENOTCONN) {
			err = staleFor(err)
		}
		return 0, &os.PathError{Op: "stat", Path: f.Name(), Err: err}
	}
	return sizeBytes, nil
}

func askSize(f *os.File) (int64, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return 0, err
	}
	var st unix.Statx_t
	if e := raw.Control(func(fd uintptr) {
		err = unix.Statx(int(fd), "", unix.AT_EMPTY_PATH|unix.AT_STATX_FORCE_SYNC, unix.STATX_SIZE, &st)
	}); e != nil {
		return 0, e
	}
	return int64(st.Size), err
}

// orphan reports whether the daemon behind an open file has gone.
func orphan(f *os.File) bool {
	_, err := askSize(f)
	return errors.Is(err, unix.ENOTCONN)
}

// Close closes the os.File, too. It is no error that the daemon has gone. If the daemon
// hangs, the error is kv.ErrTimeout, and the file is closed when the daemon goes on.
func (f *file) Close() error {
	return f.c.bound(func() error {
		err := f.File.Close()
		if errors.Is(err, unix.ENOTCONN) {
			err = nil
		}
		return errors.Join(f.f.Close(context.Background()), err)
	})
}
