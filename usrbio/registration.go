package usrbio

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A registrar registers iovs and rings with one daemon, in its directory
// 3fs-virt/iovs. Once that daemon is gone every call fails, even when another
// daemon has mounted over the same place.
type registrar interface {
	link(ctx context.Context, target, name string) error
	// unlink removes a registration, later if it cannot be removed in time, and also where a successor of the daemon has it.
	unlink(ctx context.Context, name string) error
	// unlinkHere is unlink for a name that may have been registered anew with a successor.
	unlinkHere(ctx context.Context, name string) error
	readlink(ctx context.Context, name string) (string, error)
	// probe is readlink for a caller that checks whether the daemon is alive. It
	// may block forever.
	probe(name string) error
	// call runs fn, which queries the daemon and may run on any thread. If
	// call returns before fn succeeds, undo runs afterwards.
	call(ctx context.Context, fn func() error, undo func()) error
	// finish runs fn like call, but always: later if it cannot run in time.
	finish(ctx context.Context, fn func() error) error
	close(ctx context.Context) error
}

// iovsDir is the registrar of a mounted 3FS.
//
// The daemon takes the open directory as the sign that we are alive: when it is
// released, the daemon drops everything its opener has registered (3.7). A real
// 3FS identifies the opener by its thread. So the thread that opened the
// directory also does all registering and runs no other goroutine. It exits
// with the iovsDir, so that its thread ID is not soon another's.
//
// Once the daemon has missed the timeout, no call waits for it until it answers: a
// caller with a hundred rings to close must not wait a hundred times. What could
// not be done in time is postponed until the daemon answers.
type iovsDir struct {
	*responder
	work  chan func()
	quit  chan struct{}
	ended chan struct{} // closed when the thread has exited and dir is closed
	wake  chan struct{} // signals that postponed is not empty
	calls chan struct{} // a token for each call on a thread of its own

	// Set on the registering thread; others may read them once the directory is open.
	dir *os.File
	dev uint64

	path string // where the directory was opened

	mu        sync.Mutex
	postponed []func()            // what the registering thread does when the daemon answers
	over      bool                // the registering thread will not look at postponed again
	linked    map[string]struct{} // names that were linked and not unlinked
}

// maxCalls bounds how many threads a daemon that hangs can occupy, beside the
// registering thread.
const maxCalls = 32

func newIovsDir(answerTimeout time.Duration) *iovsDir {
	d := &iovsDir{
		responder: newResponder(answerTimeout),
		work:      make(chan func()),
		quit:      make(chan struct{}),
		ended:     make(chan struct{}),
		wake:      make(chan struct{}, 1),
		linked:    map[string]struct{}{},
		calls:     make(chan struct{}, maxCalls),
	}
	go d.run()
	return d
}

func openIovsDir(ctx context.Context, mountPath string) (*iovsDir, error) {
	d := newIovsDir(answerTimeout)
	d.path = filepath.Join(mountPath, virtDir, "iovs")
	err := d.do(ctx, func() error {
		dir, err := os.OpenFile(d.path, os.O_RDONLY|unix.O_DIRECTORY, 0)
		if err != nil {
			return err
		}
		d.dir = dir
		if !hasMagic(dir) {
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
	runtime.LockOSThread() // never unlocked: the thread exits with the goroutine
	defer close(d.ended)
	for {
		select {
		case fn := <-d.work:
			fn()
		case <-d.wake:
			d.runPostponed(false)
			d.answered() // or nothing was postponed but to see whether it does
		case <-d.quit:
			d.runPostponed(true)
			d.unlinkAll()
			if d.dir != nil {
				d.dir.Close()
			}
			return
		}
	}
}

// do runs fn on the registering thread. If it returns before the daemon has
// answered, the thread stays in the kernel; undo, if not nil, runs if fn succeeds
// after that.
func (d *iovsDir) do(ctx context.Context, fn func() error, undo func()) error {
	if err := d.expired(ctx); err != nil {
		return err
	}
	q := d.query(fn, undo)
	timer := time.NewTimer(d.answerTimeout)
	defer timer.Stop()
	select {
	case d.work <- q.run:
		return d.await(ctx, q, timer)
	case <-d.quit:
		return os.ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	case <-d.whileHung():
		return syscall.ETIMEDOUT
	case <-timer.C:
		err := d.giveUp()
		d.postpone(func() {}) // what the thread is at may have nobody left to tell of its end
		return err
	}
}

func (d *iovsDir) call(ctx context.Context, fn func() error, undo func()) error {
	q := d.query(fn, undo)
	timer := time.NewTimer(d.answerTimeout)
	defer timer.Stop()
	if err := d.begin(ctx, q, timer); err != nil {
		return err
	}
	return d.await(ctx, q, timer)
}

func (d *iovsDir) finish(ctx context.Context, fn func() error) error {
	q := d.query(fn, nil)
	timer := time.NewTimer(d.answerTimeout)
	defer timer.Stop()
	if err := d.begin(ctx, q, timer); err != nil {
		d.postpone(func() { _ = fn() }) // no caller waits for its error
		return err
	}
	return d.await(ctx, q, timer)
}

// begin starts q on a thread of its own.
func (d *iovsDir) begin(ctx context.Context, q *query, timer *time.Timer) error {
	if err := d.expired(ctx); err != nil {
		return err
	}
	select {
	case d.calls <- struct{}{}:
		go func() {
			q.run()
			<-d.calls
		}()
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-d.whileHung():
		return syscall.ETIMEDOUT
	case <-timer.C:
		err := d.giveUp()
		// What occupies the threads may have nobody left to tell of its end.
		d.postpone(func() { _ = d.probe("submit-ios") })
		return err
	}
}

// postpone leaves fn to the registering thread, which runs it when the daemon answers.
func (d *iovsDir) postpone(fn func()) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.over {
		go fn() // closed meanwhile: no caller waits for fn any more
		return
	}
	d.postponed = append(d.postponed, fn)
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// runPostponed runs on the registering thread, and so do linkNow and unlinkNow.
func (d *iovsDir) runPostponed(last bool) {
	d.mu.Lock()
	postponed := d.postponed
	d.postponed, d.over = nil, last
	d.mu.Unlock()
	for _, fn := range postponed {
		fn()
	}
}

func (d *iovsDir) link(ctx context.Context, target, name string) error {
	return d.do(ctx, func() error { return d.linkNow(target, name) }, func() { _ = d.unlinkNow(name) })
}

func (d *iovsDir) linkNow(target, name string) error {
	again := false
	err := control(d.dir, func(fd int) error {
		err := unix.Symlinkat(target, fd, name)
		if again && err == unix.EEXIST {
			return nil // the first try succeeded, although a signal hid the answer
		}
		again = true
		return err
	})
	if err == nil {
		d.mu.Lock()
		d.linked[name] = struct{}{}
		d.mu.Unlock()
	}
	return err
}

// unlink may remove a name twice: a call that timed out may still be carried out.
// The second one finds nothing.
func (d *iovsDir) unlink(ctx context.Context, name string) error {
	return d.unlinkBy(ctx, func() error {
		err := d.unlinkNow(name)
		if daemonGone(err) && unix.Unlink(filepath.Join(d.path, name)) == nil {
			return nil
		}
		return err
	})
}

func (d *iovsDir) unlinkHere(ctx context.Context, name string) error {
	return d.unlinkBy(ctx, func() error { return d.unlinkNow(name) })
}

func (d *iovsDir) unlinkBy(ctx context.Context, now func() error) error {
	err := d.do(ctx, now, nil)
	switch {
	case err == os.ErrClosed: // unlinkAll removes it
		return d.awaitEnd(ctx)
	case err == syscall.ETIMEDOUT || err != nil && err == ctx.Err():
		d.postpone(func() { _ = now() })
	}
	return err
}

// unlinkAll removes the names whose unlink came too late for the registering thread: its
// caller, or that of a link, was overtaken by close.
func (d *iovsDir) unlinkAll() {
	d.mu.Lock()
	names := slices.Collect(maps.Keys(d.linked))
	d.mu.Unlock()
	for _, name := range names {
		_ = d.unlinkNow(name)
	}
}

func (d *iovsDir) unlinkNow(name string) error {
	d.mu.Lock()
	delete(d.linked, name)
	d.mu.Unlock()
	return control(d.dir, func(fd int) error { return unix.Unlinkat(fd, name, 0) })
}

func (d *iovsDir) readlink(ctx context.Context, name string) (string, error) {
	var target string // fn may write it until do has returned nil
	err := d.do(ctx, func() (err error) {
		target, err = d.readlinkNow(name)
		return err
	}, nil)
	if err != nil {
		return "", err
	}
	return target, nil
}

// probe bypasses the registering thread: it looks for a dead daemon and must not
// queue behind a call that hangs.
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

// close ends the registering thread. If it does not wait for the thread, the
// thread exits when the daemon answers.
func (d *iovsDir) close(ctx context.Context) error {
	close(d.quit)
	return d.awaitEnd(ctx)
}

// awaitEnd waits until the registering thread has exited, after quit is closed.
func (d *iovsDir) awaitEnd(ctx context.Context) error {
	timer := time.NewTimer(d.answerTimeout)
	defer timer.Stop()
	select {
	case <-d.ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-d.whileHung(): // an earlier error has said so
		return nil
	case <-timer.C:
		return d.giveUp()
	}
}

// removed ignores the errors of an unlink that mean that the name is gone already.
func removed(op string, err error) error {
	if err == nil || errors.Is(err, syscall.ENOENT) || daemonGone(err) {
		return nil
	}
	return explain(op, err)
}
