package admin

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"
)

// SocketName is the name of the socket in a state directory.
const SocketName = "admin.sock"

const (
	newName    = SocketName + ".new"
	socketMode = 0o600
)

// through calls fn with a name of a directory that fits into the address of a socket,
// however long its path is. It is valid during the call.
func through(dir string, fn func(short string) error) error {
	fd, err := unix.Open(dir, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return &os.PathError{Op: "open", Path: dir, Err: err}
	}
	defer unix.Close(fd)
	return fn("/proc/self/fd/" + strconv.Itoa(fd))
}

// listen makes the socket in a directory that is the caller's alone, where it replaces that of
// a daemon that is dead.
func listen(dir string) (l *net.UnixListener, err error) {
	err = through(dir, func(short string) error {
		made := filepath.Join(short, newName)
		if err := os.Remove(made); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if l, err = net.ListenUnix("unix", &net.UnixAddr{Name: made, Net: "unix"}); err != nil {
			return err
		}
		l.SetUnlinkOnClose(false) // the descriptor's number may be another directory's then
		if err := os.Chmod(made, socketMode); err != nil {
			return errors.Join(err, l.Close(), os.Remove(made))
		}
		if err := os.Rename(made, filepath.Join(short, SocketName)); err != nil {
			return errors.Join(err, l.Close(), os.Remove(made))
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("admin socket in %s: %w", dir, err)
	}
	return l, nil
}

// peerOf returns who is at the other end of a connection.
func peerOf(c *net.UnixConn) (who Caller, err error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return who, err
	}
	var failed error
	err = raw.Control(func(fd uintptr) {
		var peer *unix.Ucred
		if peer, failed = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); failed == nil {
			who = Caller{peer.Uid, peer.Pid}
		}
	})
	return who, errors.Join(err, failed)
}
