package usrbio

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync"
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
	// probe is readlink for him who wants to know whether the daemon lives. It
	// may take for ever.
	probe(name string) error
	// bound runs fn and returns ETIMEDOUT where that takes too long.
	bound(fn func() error) error
	close() error
}

// iovsDir is the desk of a mounted 3FS.
//
// The open directory is the daemon's sign of life from us: when it is released,
// everything registered by its opener is dropped (3.7). A real 3FS takes the
// thread for the opener, so the thread that opened the directory is also the
// one that registers, and no other goroutine ever runs on it; it ends with the
// desk, so that its number is not soon another's.
//
// A daemon that once has not answered within patience is not waited for again:
// whoever has a hundred rings to close has not an hour for it. What could not be
// unlinked then is made up for if the daemon ever answers.
type iovsDir struct {
	patience time.Duration
	work     chan func()
	quit     chan struct{}
	ended    chan struct{} // the thread has, and has closed dir
	hung     chan struct{} // closed by the first who has waited in vain
	hang     sync.Once
	owing    chan struct{} // something is owed

	// Of the registering thread; others may use them once the desk is open.
	dir *os.File
	dev uint64

	mu   sync.Mutex
	owed []string // names to unlink when the daemon answers
}

func newIovsDir(patience time.Duration) *iovsDir {
	d := &iovsDir{
		patience: patience,
		work:     make(chan func()),
		quit:     make(chan struct{}),
		ended:    make(chan struct{}),
		hung:     make(chan struct{}),
		owing:    make(chan struct{}, 1),
	}
	go d.run()
	return d
}

func openIovsDir(mountPath string) (*iovsDir, error) {
	d := newIovsDir(patience)
	err := d.do(func() error {
		dir, err := os.OpenFile(filepath.Join(mountPath, virtDir, "iovs"), os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		d.dir = dir
		if !IsHF3FS(dir) {
			return ErrNotMounted
		}
		var st unix.Stat_t
		err = control(dir, func(fd int) error { return unix.Fstat(fd, &st) })
		d.dev = st.Dev
		return err
	}, nil)
	if err != nil {
		close(d.quit)
		return nil, err
	}
	return d, nil
}

// run is the registering thread.
func (d *iovsDir) run() {
	runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
	defer close(d.ended)
	for {
		select {
		case fn := <-d.work:
			fn()
		case <-d.owing:
			d.unlinkOwed()
		case <-d.quit:
			d.unlinkOwed()
			if d.dir != nil {
				d.dir.Close()
			}
			return
		}
	}
}

// do runs fn on the registering thread. Where the daemon does not answer, do
// returns ETIMEDOUT after patience, leaves the thread waiting in the kernel, and
// answers likewise at once from then on. undo, if there is one, is run where fn
// succeeds after its caller has left.
func (d *iovsDir) do(fn func() error, undo func()) error {
	select {
	case <-d.hung:
		return syscall.ETIMEDOUT
	default:
	}
	done := make(chan error) // without room: taken by the caller, or not at all
	timer := time.NewTimer(d.patience)
	defer timer.Stop()
	select {
	case d.work <- func() {
		err := fn()
		select {
		case done <- err:
		case <-d.hung:
			if err == nil && undo != nil {
				undo()
			}
		}
	}:
	case <-d.quit:
		return os.ErrClosed
	case <-d.hung:
		return syscall.ETIMEDOUT
	case <-timer.C:
		d.giveUp()
		return syscall.ETIMEDOUT
	}
	select {
	case err := <-done:
		return err
	case <-d.hung:
	case <-timer.C:
		d.giveUp()
	}
	return syscall.ETIMEDOUT
}

func (d *iovsDir) giveUp() { d.hang.Do(func() { close(d.hung) }) }

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
	}, func() { d.unlinkNow(name) })
}

func (d *iovsDir) unlink(name string) error {
	err := d.do(func() error { return d.unlinkNow(name) }, nil)
	if err == syscall.ETIMEDOUT {
		d.mu.Lock()
		d.owed = append(d.owed, name)
		d.mu.Unlock()
		select {
		case d.owing <- struct{}{}:
		default:
		}
	}
	return err
}

// unlinkNow, like unlinkOwed, runs on the registering thread.
func (d *iovsDir) unlinkNow(name string) error {
	return control(d.dir, func(fd int) error { return unix.Unlinkat(fd, name, 0) })
}

// unlinkOwed makes up for unlinks that came to nothing. One that the daemon has
// carried out meanwhile is carried out once more, and finds nothing.
func (d *iovsDir) unlinkOwed() {
	d.mu.Lock()
	names := d.owed
	d.owed = nil
	d.mu.Unlock()
	for _, name := range names {
		d.unlinkNow(name)
	}
}

func (d *iovsDir) readlink(name string) (string, error) {
	var target string // fn's, until do has returned without an error
	err := d.do(func() (err error) {
		target, err = d.readlinkNow(name)
		return err
	}, nil)
	if err != nil {
		return "", err
	}
	return target, nil
}

// probe does not go through the registering thread: it finds a dead daemon, and
// must not queue behind a call that hangs.
func (d *iovsDir) probe(name string) error {
	_, err := d.readlinkNow(name)
	return err
}

func (d *iovsDir) readlinkNow(name string) (string, error) {
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

// bound is do for what may run on any thread and must be done in the end: a
// daemon that hangs is not waited for, but fn is.
func (d *iovsDir) bound(fn func() error) error {
	done := make(chan error, 1)
	go func() { done <- fn() }()
	timer := time.NewTimer(d.patience)
	defer timer.Stop()
	select {
	case err := <-done:
		return err
	case <-d.hung:
	case <-timer.C:
		d.giveUp()
	}
	return syscall.ETIMEDOUT
}

func (d *iovsDir) close() error {
	close(d.quit)
	select {
	case <-d.ended:
	case <-d.hung: // the thread goes on by itself when it can
	}
	return nil
}

// forget is the errors of unlinking what may be gone already.
func forget(op string, err error) error {
	if err == nil || errors.Is(err, syscall.ENOENT) || daemonGone(err) {
		return nil
	}
	return fmt.Errorf("usrbio: %s: %w", op, err)
}
