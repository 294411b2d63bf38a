package fuseserver

import (
	"context"
	"errors"
	"fmt"
	"log"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hanwen/go-fuse/v2/fuse"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/restart"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
)

const (
	busyRetryInterval = 20 * time.Millisecond
	// abortGrace is the time that requests in progress may take to return after an
	// abort.
	abortGrace = 2 * time.Second
	// copyGrace is how long the kernel may take to end the connection of a mount that nobody
	// uses, before that counts as kept by a copy of the mount.
	copyGrace = 200 * time.Millisecond
)

// Mount is a mounted file system. New mounts it, Serve answers its requests, Unmount
// ends it.
type Mount struct {
	point      string
	id, minor  int   // of the mount and of its device, as in mountpoint
	buried     []int // minors of the mounts of dead daemons beneath
	server     *fuse.Server
	fs         *fileSystem
	operations *operations
	gate       *gate // nil: the mount ends with its daemon
	state      *restart.Dir

	ending    atomic.Bool   // Unmount was called
	lost      chan error    // see Lost
	served    chan struct{} // closed when Serve returns
	abandon   chan struct{} // closed when Serve must stop waiting
	abandoned sync.Once
}

// ErrLeft is an error of Unmount: the mount could not be removed and stays, without a daemon.
var ErrLeft = errors.New("the mount is left behind, dead")

// New mounts t at point with control as 3fs-virt. Requests wait until Serve runs. On
// success it sets the tree's invalidation hook.
func New(t *tree.Tree, control ControlDir, set Settings, point string, opts Options) (*Mount, error) {
	if err := opts.complete(); err != nil {
		return nil, err
	}
	point, err := canonicalPoint(point)
	if err != nil {
		return nil, err
	}
	if opts.State != nil && opts.Recalled == nil {
		if opts.Recalled, err = Recall(t, opts.State); err != nil {
			return nil, err
		}
	}
	m := newMount(point, opts)
	if opts.Adopt != nil {
		if err = m.takeOver(t, control, set, opts); err == nil {
			return m, nil
		}
		opts.Log.Warn("the mount of the daemon before cannot be taken over: its clients are cut off", "mount", point, "why", err)
		m = newMount(point, opts)
	}
	if opts.Recalled != nil {
		opts.Recalled.drop()
	}
	fd, err := m.attach(t.Dir(), opts)
	if err != nil {
		return nil, err
	}
	if err := m.start(t, control, set, fd, opts); err != nil {
		return nil, err
	}
	return m, nil
}

func newMount(point string, o Options) *Mount {
	return &Mount{point: point, state: o.State, lost: make(chan error, 1), served: make(chan struct{}), abandon: make(chan struct{})}
}

// start connects, or removes the mount if that fails.
func (m *Mount) start(t *tree.Tree, control ControlDir, set Settings, fd int, opts Options) error {
	err := m.connect(t, control, set, fd, opts)
	if err == nil {
		return nil
	}
	left := m.removeDead()
	if m.fs != nil {
		m.fs.closeReplies() // until then, no other mount gets the numbers of this one
	}
	return errors.Join(err, left)
}

// attach mounts a new FUSE connection and returns its descriptor. A dead daemon's mount is replaced, or stays
// beneath: at no time does a client see what that covers.
func (m *Mount) attach(data string, opts Options) (fd int, err error) {
	defer lockPoint(m.point)()
	if err := preparePoint(m.point, data); err != nil {
		return -1, err
	}
	before, err := mountsAt(m.point)
	if err != nil {
		return -1, err
	}
	if fd, err = attach(m.point, opts, len(before) > 0 && before[0].isFUSE() && before[0].mayReplace()); err != nil {
		return -1, err
	}
	if err = m.noteMounts(before); err != nil {
		unix.Close(fd)
		if Dead(m.point) { // and so it is this one, or a dead daemon's
			_ = detach(m.point, true)
		}
		return -1, err
	}
	return fd, nil
}

// connect starts the FUSE connection on fd, which it owns from then on.
func (m *Mount) connect(t *tree.Tree, control ControlDir, set Settings, fd int, opts Options) error {
	second, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 3)
	if err != nil {
		unix.Close(fd)
		return err
	}
	if err := m.serveFrom(t, control, set, opts, fd, second); err != nil {
		return fmt.Errorf("mount %s: %w", m.point, err)
	}
	return nil
}

// serveFrom makes the server of a new connection. It owns fd.
func (m *Mount) serveFrom(t *tree.Tree, control ControlDir, set Settings, opts Options, fd, second int) (err error) {
	all := m.handlers(t, control, set, opts, second)
	terms := fuseOptions(opts, t.HasACLs())
	if opts.State == nil {
		// After an error go-fuse has closed fd, or does not own it yet. New detaches the mount next.
		if m.server, err = fuse.NewServer(all, "/dev/fd/"+strconv.Itoa(fd), terms); err != nil {
			return err
		}
		m.finish(t, opts)
		return nil
	}
	defer unix.Close(fd)
	r, err := m.begin(opts, all, terms, fd)
	if err != nil {
		return err
	}
	m.finish(t, opts)
	m.fs.handles.keep(opts.Recalled, m.stateLost)
	if err := opts.keep(r); err != nil {
		m.stateLost(err)
	}
	return nil
}

// takeOver is New for the mount of a predecessor. After an error its connection is ended.
func (m *Mount) takeOver(t *tree.Tree, control ControlDir, set Settings, opts Options) error {
	r, err := m.adopt(opts, func(device int) fuse.RawFileSystem {
		return m.handlers(t, control, set, opts, device)
	}, fuseOptions(opts, t.HasACLs()))
	if err != nil {
		return errors.Join(err, endInherited(opts.Adopt, r))
	}
	m.fs.adopted = true
	m.finish(t, opts)
	opts.Recalled.pass()
	m.fs.recall(opts.Recalled)
	m.fs.handles.keep(opts.Recalled, m.stateLost)
	return nil
}

// handlers makes what answers requests. second is a descriptor of the device.
func (m *Mount) handlers(t *tree.Tree, control ControlDir, set Settings, opts Options, second int) fuse.RawFileSystem {
	m.fs = newFileSystem(t, control, set, opts, m.point, second)
	m.operations = newOperations(newAdmission(m.fs, opts.Limits))
	if opts.State == nil {
		return m.operations
	}
	m.gate = &gate{}
	all := fuse.RawFileSystem(&outliving{operations: m.operations, gate: m.gate})
	if opts.wrap != nil {
		all = opts.wrap(all)
	}
	return all
}

// finish connects the file system with its server.
func (m *Mount) finish(t *tree.Tree, opts Options) {
	m.fs.server = m.server
	m.fs.pruner.byID = m.server.PruneNotify
	m.fs.passthrough.start(m.server, t, opts)
	m.fs.daemonValue = opts.daemonValue(m.fs.passthrough.why, false)
	m.fs.unseenValue = opts.daemonValue(m.fs.passthrough.why, true)
	t.SetInvalidate(m.fs.invalidate)
}

// stateLost is called when it cannot be written what a successor must know.
func (m *Mount) stateLost(why error) {
	m.fs.log.Warn("what a successor must know of the mount cannot be kept: the next restart cuts its clients off", "mount", m.point, "err", errors.Join(why, Forsake(m.state)))
}

func fuseOptions(o Options, acls bool) *fuse.MountOptions {
	opts := &fuse.MountOptions{
		MaxBackground: maxBackground(o.Limits),
		MaxWrite:      maxIOBytes,
		MaxReadAhead:  maxIOBytes,
		// A pipe holds 1 MiB: a read of that size and its header do not fit.
		DisableSplice: true,
		EnableAcl:     acls,
		// The data directory may be on overlayfs or another stacked file system.
		MaxStackDepth: 2,
		Logger:        log.New(&fuseLog{log: o.Log, late: o.Deadline > 0}, "", 0),
		ExtraCapabilities: fuse.CAP_ATOMIC_O_TRUNC | fuse.CAP_IOCTL_DIR | fuse.CAP_READDIRPLUS_AUTO |
			// Where a directory has a default ACL, the umask does not apply.
			fuse.CAP_DONT_MASK | fuse.CAP_ASYNC_DIO |
			// Without it the kernel asks for security.capability at every write.
			fuse.CAP_HANDLE_KILLPRIV_V2,
	}
	if !mayPassthrough(o) {
		opts.DisabledCapabilities |= fuse.CAP_PASSTHROUGH
	}
	return opts
}

// maxBackground is how many requests that no process waits for, releases among them, the
// kernel sends at a time. It is more than the daemon admits: requests that hang must not
// keep the kernel from sending releases.
func maxBackground(l Limits) int {
	const releases, most = 64, 1<<16 - 1
	return min(l.Requests+releases, most)
}

// WhyNoPassthrough returns why the kernel sends every read and write of the mount's files
// to the daemon and refuses shared mappings, with the cure; or nothing if it does not.
func (m *Mount) WhyNoPassthrough() string { return m.fs.passthrough.why }

// Point returns the canonical path of the mount.
func (m *Mount) Point() string { return m.point }

// Minor returns the minor number of the mount's device, whose major number is 0.
func (m *Mount) Minor() uint32 { return uint32(m.minor) }

// Serve answers requests until the file system is unmounted or its connection ends, and
// returns when all are answered and every handle is closed. Call it once.
// If requests are stuck in the backing file system when Unmount cuts them off, Serve
// returns an error and abandons the tree; the requests and what they use stay until the
// process exits.
func (m *Mount) Serve() error {
	defer close(m.served)
	defer m.removeBuried()
	defer m.watch()()
	ended := make(chan struct{})
	go m.fs.pruner.run()
	var early sync.WaitGroup
	early.Go(m.fs.tree.InvalidateEarly)
	if m.fs.adopted {
		if err := resend(m.fs.replyFD); err != nil && !hasEnded(m.fs.replyFD) {
			m.fs.log.Warn("calls that the daemon before has not answered hang", "mount", m.point, "err", err)
		}
	}
	go func() {
		defer close(ended)
		m.server.Serve()
		early.Wait()
		m.lose(m.whyEnded())
		m.fs.end()
	}()
	select {
	case <-ended:
		return nil
	case <-m.abandon:
		m.fs.tree.Abandon()
		m.fs.notifier.stop()
		return fmt.Errorf("mount %s: requests did not end within %v of the abort: abandoned", m.point, abortGrace)
	}
}

// Unmount ends the mount and waits for Serve to return. While the mount is busy it
// tries again until ctx ends. Then it detaches the mount, fails the requests of
// processes that still use it, and returns an error that says so. A mount whose connection
// has ended is removed at once. The error is ErrLeft if the mount stays.
func (m *Mount) Unmount(ctx context.Context) error {
	m.ending.Store(true)
	root := m.root()
	defer func() {
		if root >= 0 {
			unix.Close(root)
		}
	}()
	tick := time.NewTicker(busyRetryInterval)
	defer tick.Stop()
	for {
		at, err := m.look()
		switch {
		case m.hasEnded():
			return m.afterEnd(ctx)
		case err != nil:
		case at.gone:
			return m.wait(ctx, &root)
		case at.over != nil:
			err = m.covered(at.over)
		default:
			if err = detach(at.path, false); err == nil || errors.Is(err, unix.EINVAL) {
				return m.wait(ctx, &root)
			}
		}
		select {
		case <-m.served:
			return m.removeDead()
		case <-ctx.Done():
			return m.cutOff(err, root)
		case <-tick.C:
		}
	}
}

// afterEnd is Unmount once the connection has ended.
func (m *Mount) afterEnd(ctx context.Context) error {
	left := m.removeDead()
	select {
	case <-m.served:
		return left
	case <-ctx.Done():
		return m.end()
	}
}

// wait waits for Serve after the mount point is unmounted. Another mount namespace may hold a
// copy of the mount, and then the connection lives until it is aborted: at once if nobody has
// anything open there. It closes root.
func (m *Mount) wait(ctx context.Context, root *int) error {
	for wait := busyRetryInterval; ; {
		if m.fs.handles.len() == 0 {
			if *root >= 0 {
				unix.Close(*root)
				*root = -1
			}
			wait = copyGrace
		}
		select {
		case <-m.served:
			return nil
		case <-ctx.Done():
			if !m.hasEnded() && (m.fs.handles.len() > 0 || m.isMapped()) {
				return m.cutOff(unix.EBUSY, *root)
			}
			m.abort()
			return m.end()
		case <-time.After(wait):
		}
		if wait == copyGrace && m.fs.handles.len() == 0 && !m.isMapped() {
			m.abort()
			return m.end()
		}
	}
}

// cutOff ends the connection although clients use it. root is from Mount.root.
func (m *Mount) cutOff(why error, root int) error {
	users := m.users()
	if root >= 0 {
		m.revoke(root)
	}
	m.abort()
	return errors.Join(fmt.Errorf("mount %s: %w: %w: in use %s", m.point, ErrCutOff, why, users), m.end())
}

// end removes what is left of the mount after an abort and waits for Serve.
func (m *Mount) end() error {
	left := m.removeDead()
	select {
	case <-m.served:
	case <-time.After(abortGrace):
		m.abandoned.Do(func() { close(m.abandon) })
		<-m.served
		return errors.Join(fmt.Errorf("mount %s: abandoned: %w", m.point, unix.EBUSY), left) // Serve says why
	}
	return left
}

// hasEnded reports whether the connection has ended. Then its numbers may be another mount's.
func (m *Mount) hasEnded() bool { return m.fs != nil && m.fs.hasEnded() }

// removeDead detaches this mount, whose connection ends, and the dead ones beneath.
func (m *Mount) removeDead() error {
	unlock := lockPoint(m.point)
	at, err := m.look()
	switch {
	case err != nil, at.gone:
	case at.over != nil:
		err = m.covered(at.over)
	case m.hasEnded() && !Dead(at.path): // another one's by now, with the numbers that this one had
	default:
		err = detach(at.path, true)
	}
	unlock()
	m.removeBuried()
	if err != nil {
		return fmt.Errorf("mount %s: %w: %w", m.point, ErrLeft, err)
	}
	return nil
}
