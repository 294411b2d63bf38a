package usrbio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// patience bounds every call that the daemon must answer. A daemon that is
// alive answers these from memory.
const patience = 30 * time.Second

// A desk is where things are registered: the directory 3fs-virt/iovs of one
// daemon. Once that daemon is gone every call fails, also when another one has
// mounted over the same place.
type desk interface {
	link(target, name string) error
	unlink(name string) error
	readlink(name string) (string, error)
	close() error
}

// iovsDir is the desk of a mounted 3FS.
//
// The open directory is the daemon's sign of life from us: when it is released,
// everything registered by its opener is dropped (3.7). A real 3FS takes the
// thread for the opener, so the thread that opened the directory is also the
// one that registers, and no other goroutine ever runs on it; it ends with the
// desk, so that its number is not soon another's.
type iovsDir struct {
	dir  *os.File
	work chan func()
	quit chan struct{}
}

func openIovsDir(mountPath string) (*iovsDir, error) {
	d := &iovsDir{work: make(chan func()), quit: make(chan struct{})}
	go d.run()
	err := d.do(func() error {
		dir, err := os.OpenFile(filepath.Join(mountPath, virtDir, "iovs"), os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		if !IsHF3FS(dir) {
			dir.Close()
			return ErrNotMounted
		}
		d.dir = dir
		return nil
	})
	if err != nil {
		close(d.quit)
		return nil, err
	}
	return d, nil
}

// run is the registering thread.
func (d *iovsDir) run() {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	for {
		select {
		case fn := <-d.work:
			fn()
		case <-d.quit:
			return
		}
	}
}

// do runs fn on the registering thread. Where the daemon does not answer, do
// returns after patience and leaves the thread waiting in the kernel.
func (d *iovsDir) do(fn func() error) error {
	done := make(chan error, 1)
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case d.work <- func() { done <- fn() }:
	case <-d.quit:
		return os.ErrClosed
	case <-timer.C:
		return syscall.ETIMEDOUT
	}
	select {
	case err := <-done:
		return err
	case <-timer.C:
		return syscall.ETIMEDOUT
	}
}

func (d *iovsDir) link(target, name string) error {
	again := false
	return d.do(func() error {
		return control(d.dir, func(fd int) error {
			err := unix.Symlinkat(target, fd, name)
			if again && err == unix.EEXIST {
				return nil // done the first time, although a signal hid the answer
			}
			again = true
			return err
		})
	})
}

func (d *iovsDir) unlink(name string) error {
	return d.do(func() error {
		return control(d.dir, func(fd int) error { return unix.Unlinkat(fd, name, 0) })
	})
}

// readlink does not go through the registering thread: it is also the probe
// that finds a dead daemon, and must not queue behind a call that hangs.
func (d *iovsDir) readlink(name string) (string, error) {
	b := make([]byte, 4096)
	n := 0
	err := control(d.dir, func(fd int) (err error) {
		n, err = unix.Readlinkat(fd, name, b)
		return err
	})
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

func (d *iovsDir) close() error {
	close(d.quit)
	return d.dir.Close()
}

// forget is the errors of unlinking what may be gone already.
func forget(op string, err error) error {
	if err == nil || errors.Is(err, syscall.ENOENT) || daemonGone(err) {
		return nil
	}
	return fmt.Errorf("usrbio: %s: %w", op, err)
}
