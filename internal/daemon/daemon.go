// Package daemon builds a kv3fs daemon from its configuration, runs it and stops its
// parts in order. It is the composition root, and so imports all of them.
package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	sdnotify "github.com/coreos/go-systemd/v22/daemon"

	"github.com/kv3fs/kv3fs/internal/admin/api"
	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/controldir"
	"github.com/kv3fs/kv3fs/internal/fs/cred"
	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
	"github.com/kv3fs/kv3fs/internal/fs/health"
	"github.com/kv3fs/kv3fs/internal/fs/integrity"
	"github.com/kv3fs/kv3fs/internal/fs/lookups"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/fs/settings"
	"github.com/kv3fs/kv3fs/internal/fs/tree"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/logging"
	"github.com/kv3fs/kv3fs/internal/wire"
)

// Config configures a daemon.
type Config struct {
	Version       string // shown by the mount, see identity
	DataDir       string // created if missing
	Fresh         Fresh
	Sharing       Sharing
	Identity      string // names this host's state; "": see thisHost
	MountPoint    string // created if missing
	RemountPrefix string // see controldir.Options
	Mount         fuseserver.Options
	Settings      settings.Options // the kernel's timeouts may be Auto
	IO            blockio.Mode
	Rings         ringserver.Options
	Pages         Pages
	Limits        Limits
	Keeping       Keeping
	Checksums     bool // of what is written through the daemon, see integrity
	Admin         AdminWeb
	Tracing       Tracing
	// Doctor examines this daemon, for those who ask what it finds; nil: nobody does.
	Doctor func(context.Context) ([]api.Finding, error)
	// Descriptors are what was inherited, and keep what shall outlive this process; nil: nothing does. HandsOver is asked when ctx has ended,
	// whether another daemon goes on; nil: none does.
	Descriptors *fdstore.Store
	HandsOver   func() bool
	// Args is the command line of this process, with which it may execute another program; nil: it may not.
	Args []string
	// RestartState is where clients' rings outlive the daemon: RestartAuto, RestartOff or a directory.
	RestartState string
	// Drain bounds how long a stop waits for users of the mount.
	Drain time.Duration
	Log   *slog.Logger
	Lines *logging.Log // what Log writes to, whose last lines and level are shown, and which says what operators do; nil: they are not
	// Reload reads the configuration again, for operators and for each of Hangups.
	Reload  func() (Reload, error)
	Hangups <-chan struct{}

	health    *health.Store // of the data directory's file system
	notKept   error         // what operators are told who ask a daemon without a keeper of its own
	usage     tree.Usage    // a test's, in place of the keeper
	stopGrace time.Duration // a test's, in place of the constant
}

// ErrCutOff says that clients still used the mount when Config.Drain was over.
var ErrCutOff = errors.New("clients that had not left the mount in time were cut off; the log names them")

// Run serves until ctx ends. It leaves nothing behind: requests in flight are answered, and
// the mount and the semaphores are removed. If it loses the mount before, because another
// process unmounts it or aborts its connection, it stops in the same way and returns an error.
// It calls ready once, when the mount serves clients.
//
// A stop ends within Config.Drain, the deadline of requests, Pages.Drain and stopGrace, also if the data directory does not
// answer: then with ErrStuck, and the process should end.
func Run(ctx context.Context, c Config, ready func(mountPoint string)) error {
	stop := newStopping(ctx, c.stopGrace)
	defer stop.begin()
	return stop.await(c.Drain+c.Rings.Deadline+c.Pages.Drain, c.DataDir, func() error { return run(ctx, c, stop, ready) })
}

// run is Run without a bound.
func run(ctx context.Context, c Config, stop *stopping, ready func(mountPoint string)) (err error) {
	leaves := false // what a predecessor has left stays if this start fails, since whoever has asked for it tries again
	data, err := dataDir(c.DataDir)
	if err != nil {
		return err
	}
	if err := c.Fresh.apply(c.Log, data); err != nil {
		return err
	}
	me, err := thisHost(host.Local(), c.Identity)
	if err != nil {
		return err
	}
	on, err := dataStore(host.Local(), data, c.Sharing, c.IO, c.Log)
	if err != nil {
		return err
	}
	mover, err := on.mover(c.IO, data)
	if err != nil {
		return err
	}
	c.IO = mover.Mode
	c.Settings = on.timeouts(c.Settings)
	c.Mount.Passthrough = on.passthrough(c.Mount.Passthrough)
	if on.shared {
		c.Mount.Deadline = c.Rings.Deadline
	}
	open := openState
	if c.Settings.Readonly {
		open = readonlyState
	}
	watch, err := watchData(data, lookAtData, c.Log)
	if err != nil {
		return err
	}
	defer watch.end()
	st, err := openAfterKilled(ctx, data, c.MountPoint, me, c.Descriptors, c.Log, open)
	if err != nil {
		return err
	}
	defer st.close()
	left, err := restartState(ctx, c.RestartState, data, me, c.Descriptors, c.Log)
	if err != nil {
		return err
	}
	leaves = left != nil && left.Prior()
	came := takeHandover(left, c.Log)
	c.Mount.HeldBack = came.HeldBack
	defer func() { err = errors.Join(err, endRestartState(left, leaves)) }()
	defer tellRefused(left, c.Log)()
	c.Rings.Restart = left
	if n := st.removeLeftovers(ringserver.KeptSemaphores(left)); n > 0 {
		c.Log.Info("removed the semaphores of a killed daemon", "semaphores", n)
	}
	user, err := newDataUser(data, st.dir)
	if err != nil {
		return err
	}
	defer user.close()
	c.health = health.Watch(health.Options{Dir: data, Look: user.look, Limit: max(c.Rings.Deadline, shortestLook), Log: c.Log})
	defer c.health.End()
	pageFiles, err := newPageFiles(data, []string{data, c.DataDir, c.MountPoint}, c.Pages.Files, c.Log)
	if err != nil {
		return err
	}
	var keep *keeping
	var atWork func() *keeper.Keeper
	c.notKept = errNotKept
	if on.shared && !c.Settings.Readonly {
		shared, err := keepShared(data, me, c.Keeping, c.Log, c.audit())
		if err != nil {
			return err
		}
		defer shared.stop()
		atWork = shared.keeper
		if shared != nil {
			c.notKept = errKeptElsewhere
		}
	} else if keep, err = newKeeping(data, c.Keeping, pageFiles, c.Settings.Readonly, c.Log); err != nil {
		return err
	}
	defer keep.close()
	if atWork == nil {
		atWork = keep.keeper
	}
	if c.usage == nil {
		c.usage = keep.usage()
	}
	sums := newChecksums(data, c.Checksums, on.shared, c.Settings.Readonly, c.Log)
	defer sums.Close() // after the tree
	granted, err := newGrants(left, c.Rings.SameMount, c.Log)
	if err != nil {
		return err
	}
	looked := lookups.New()
	options := tree.Options{Lookups: looked, Spare: fuseserver.SpareDescriptors(), Readonly: c.Settings.Readonly, Usage: c.usage, Shared: on.sharing()}
	if sums != nil {
		options.Sums = sums
		if !c.Settings.Readonly {
			options.Aside = aside
		}
	}
	if granted != nil {
		options.Grants = granted
	}
	kept, err := c.keptState(left)
	if err != nil {
		return errors.Join(err, granted.close())
	}
	if kept != nil {
		options.State, options.StateLost = kept, stateLost(kept, c.Log)
	}
	tree, err := tree.Open(data, options)
	if err != nil {
		return errors.Join(err, granted.close())
	}
	defer func() { err = errors.Join(err, granted.close(), tree.Close()) }()
	point, err := mountPoint(c.MountPoint)
	if err != nil {
		return err
	}
	c.Mount.Log = c.Log
	if c.Rings.SameMount, err = c.inheritMount(tree, kept, point); err != nil {
		return err
	}
	defer func() { c.Mount.Recalled.Close() }()
	held := stillHeld(host.Local(), c.ended(st.formerMounts(me.Boot)), c.Log)
	if c.Rings.SameMount {
		granted.forgetInherited()
	}
	set := settings.New(c.Settings)
	if err := keepSettings(left, set, c.Log); err != nil {
		return err
	}
	c.Rings.Logger, c.Rings.Health = c.Log, c.health
	c.Rings.MaxRegistrations = c.Limits.Registrations
	c.Rings.MaxRingUsers = c.Limits.RingUsers
	c.Rings.MaxMappedBytes = c.Limits.mappedBytes(host.Local())
	tracer, err := c.Tracing.start(c.Version, c.Log)
	if err != nil {
		return err
	}
	defer tracer.Close()
	traceRings(&c.Rings, tracer)
	c.Pages.tracer, c.Pages.Descriptors = tracer, c.Descriptors
	c.Pages.Audit = c.audit()
	space := newDataSpace(data)
	full := newDiskFull(space, c.Log)
	c.Rings.DiskFull = full.failed
	fullCtx, endFull := context.WithCancel(context.Background())
	var looking sync.WaitGroup
	defer looking.Wait()
	defer endFull()
	if !c.Settings.Readonly {
		looking.Go(func() { full.run(fullCtx) })
	}
	var rings *ringserver.Server
	var ending sync.WaitGroup
	defer ending.Wait()
	c.Rings.NoneInherited = func(uint32) { ending.Go(func() { granted.keepOnly(rings.Inherited) }) }
	rings, err = ringserver.New(files{tree, granted}, set.Readonly, mover, c.Rings)
	if err != nil && left != nil && noRoom(err) {
		c.Log.Warn("clients' rings end with this daemon, and those of the last one have ended", "err", err, "cure", "make room in the directory of --restart-state, and restart")
		c.Rings.Restart = nil
		st.removeLeftovers("")
		rings, err = ringserver.New(files{tree, granted}, set.Readonly, mover, c.Rings)
	}
	if err != nil {
		return err
	}
	if leaves {
		rings.Leave()
	}
	defer func() {
		rings.Close()
		leaves = leaves && (rings.Left() || set.Changed() || c.Mount.State != nil && c.Descriptors.Managed())
	}()
	granted.keepOnly(rings.Inherited)
	if err := st.noteSemaphores(rings.SemaphoreNames()); err != nil {
		return err
	}
	if !tree.HasACLs() {
		c.Log.Info("the data directory's file system has no POSIX ACLs: only permission bits decide", "data", data)
	}
	control := controldir.New(rings, set, controldir.Options{MountPoint: point, RemountPrefix: c.RemountPrefix})
	c.Mount.Health = c.health
	c.Mount.Limits = c.Limits.mount(host.Local())
	c.Mount.Daemon = identity(c, data)
	c.Mount.Daemon.Outlives, c.Mount.Daemon.NoHandles = c.outlives(left != nil), !hasHandles(data)
	c.Pages.health = c.health
	c.Pages.registry = newRegistry(c.Version)
	c.Pages.registry.MustRegister(newRingMetrics(rings), newChecksumMetrics(sums), newKeeperMetrics(atWork), newLookupMetrics(looked), newClientMetrics(rings), healthMetric(c.health), space)
	dropFormer(c.Descriptors, c.Pages, c.Admin.Address, c.Log)
	pageService, err := pagesOf(ctx, pagesPlace{data, st.dir, me, on.shared, on.late, newVisible(data, me, mover, on)}, c.Pages, pageFiles)
	if err != nil {
		return err
	}
	able := &readiness{health: c.health, space: space, readonly: c.Settings.Readonly, pages: pageService.readiness()}
	shown := &view{c: c, me: me, data: data, point: point, shared: on.shared, io: c.IO.String(), rings: rings, looked: looked, keeper: atWork, pages: pageService, ready: able}
	shown.start()
	defer shown.close()
	adminWeb, err := startAdminWeb(c.Admin, c.Descriptors, c.Pages.registry, able, shown, c.Version, c.Log)
	if err != nil {
		return errors.Join(err, pageService.stop())
	}
	defer adminWeb.Close()
	dropRest(c.Descriptors, c.Log)
	adviseRootOnly(c.Log, data, point)
	warnBeneath(c.Log, point, uint32(os.Geteuid()))
	mnt, err := fuseserver.New(tree, control, set, point, c.Mount)
	if err != nil {
		return errors.Join(err, pageService.stop())
	}
	device, err := c.keepMount(mnt)
	if err != nil {
		c.Log.Warn("clients of the mount will be cut off if this daemon ends", "err", err)
	}
	if device != nil {
		defer device.Close()
	}
	c.Pages.registry.MustRegister(newMountMetrics(mnt))
	if why := mnt.WhyNoPassthrough(); why != "" {
		c.Log.Warn("passthrough is off: clients cannot map files of the mount with MAP_SHARED (ENODEV), and its reads and writes are slower; rings are not affected", "why", why)
	} else {
		c.Log.Info("passthrough is on: the kernel reads, writes and maps the files of the mount itself")
		shown.through.Store(true)
	}
	st.noteMounts(append(slices.Clone(held), formerMount{me.Boot, mnt.Minor()}), c.Log)
	defer startChecksums(sums)()
	again := newReloader(c.audit())
	again.read, again.data, again.shared, again.keep, again.rings, again.web = c.Reload, data, on.shared, keep, rings, adminWeb
	leave := func(successor bool) {
		if leaves = successor; !successor {
			rings.Last()
			return
		}
		rings.Leave()
		granted.leave()
	}
	err = serve(ctx, c, stop, leave, tree, rings, mnt, pageService, keep, sums, able, shown, again, came, st.dir, ready)
	stop.now("its files and checksums")
	if err == nil { // nobody holds anything of this mount
		st.noteMounts(held, c.Log)
	}
	return err
}

// serve runs the parts of a daemon. They stop in this order: first the mount, which
// waits for its users to leave and admits no new ones; then the rings, which serve
// until the mount is removed and answer what is left; the page service last, because
// engines that are leaving still confirm what they have written.
func serve(ctx context.Context, c Config, stop *stopping, leave func(successor bool), tree *tree.Tree, rings *ringserver.Server, mnt *fuseserver.Mount, pageService *pageService, keep *keeping, sums *integrity.Store, able *readiness, shown *view, again *reloader, came handedOver, stateDir string, ready func(string)) error {
	ringCtx, stopRings := context.WithCancel(context.Background())
	defer stopRings()
	ringsDone := make(chan error, 1)
	go func() { ringsDone <- rings.Run(ringCtx) }()
	endRings := func() error {
		stopRings()
		err := <-ringsDone
		if err != nil {
			tree.Abandon() // stuck requests still use its files
		}
		return err
	}
	trimCtx, stopTrim := context.WithCancel(context.Background())
	trimDone := make(chan struct{})
	go func() {
		defer close(trimDone)
		_ = tree.Run(trimCtx) // ends with its context
	}()
	stopKeeping := keep.start(tree, c.Log)
	watchdog := newWatchdog(c.Log, lookUp(mnt.Point(), answers(c.health)), rings.Alive)
	defer watchdog.end()
	up := newUpgrader(ctx, stillness{mnt, rings, pageService, watchdog, c.Log}, &c, came)
	stopOperating := keep.operate(stateDir, scrubber{tree, sums}, shown.handler(nil), again, up, c.notKept, c.Log)
	var following sync.WaitGroup
	defer following.Wait()
	followCtx, stopFollowing := context.WithCancel(context.Background())
	defer stopFollowing()
	following.Go(func() { again.follow(followCtx, c.Hangups) })
	mountDone := make(chan error, 1)
	go func() { mountDone <- mnt.Serve() }()

	_, _ = sdnotify.SdNotify(false, sdnotify.SdNotifyReady) // systemd may not be there
	watchdog.start()
	able.serving.Store(true)
	up.serves()
	stopOffering := up.offer()
	ready(mnt.Point())

	var errs []error
	var cutOff error
	select {
	case <-ctx.Done():
		c.Log.Info("stopping", "mount", mnt.Point(), "drain", c.Drain)
	case lost := <-mnt.Lost():
		c.Log.Error("lost the mount; stopping", "mount", mnt.Point(), "cause", lost, "drain", c.Drain)
		errs = append(errs, lost)
	}
	up.stop()
	stopOffering()
	able.serving.Store(false)
	handsOver := c.handsOver(ctx)
	leave(handsOver || c.mayBeFollowed(ctx))
	if handsOver {
		pageService.leave()
	} else if err := c.Descriptors.RemoveAll(); err != nil {
		c.Log.Warn(stillKept, "err", err)
	}
	stop.begin()
	stop.now("a reload")
	again.stop()
	stopFollowing()
	stop.now("the mount")
	watchdog.stop()
	_, _ = sdnotify.SdNotify(false, sdnotify.SdNotifyStopping)
	drain, cancel := context.WithTimeout(context.Background(), c.Drain)
	defer context.AfterFunc(drain, keep.endWaiting)() // the making of an entry does not notice that its client is cut off
	handsMount := handsOver && ctx.Err() != nil && c.Mount.State != nil
	if handsMount {
		c.handOver(mnt, tree)
	} else {
		switch err := mnt.Unmount(drain); {
		case errors.Is(err, fuseserver.ErrLeft):
			errs = append(errs, err)
		case errors.Is(err, fuseserver.ErrCutOff):
			c.Log.Warn("cut off clients that did not leave the mount in time: reads and writes of what they have open fail, but files that they have mapped can still change; stop these processes", "mount", mnt.Point(), "err", err)
			cutOff = ErrCutOff
		case err != nil:
			c.Log.Warn("unmounted with calls in progress", "mount", mnt.Point(), "err", err)
		}
		errs = append(errs, <-mountDone)
	}
	cancel()
	stop.now("the rings")
	errs = append(errs, endRings())
	stop.now("the page service")
	errs = append(errs, pageService.stop())
	stop.now("the admin socket")
	stopOperating()
	stop.now("the keeper")
	stopKeeping() // after the last who may wait for room
	stop.now("its files and checksums")
	stopTrim()
	<-trimDone
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return cutOff
}

// stillKept is what the log says of a descriptor that a stopped daemon could not have forgotten.
const stillKept = "a listener may stay open, although nobody serves it, until whoever keeps it ends"

// handsOver reports whether another daemon goes on: one that is started again because this one has lost its mount, or after a stop that
// says so.
func (c *Config) handsOver(ctx context.Context) bool {
	switch {
	case !c.Descriptors.Managed():
		return false
	case ctx.Err() == nil:
		return true
	}
	return c.HandsOver != nil && c.HandsOver()
}

// identity returns the value of wire.DaemonXattr, for diagnosis.
func identity(c Config, data string) *wire.Daemon {
	d := &wire.Daemon{
		Version: c.Version, PID: os.Getpid(), Data: data, Cluster: c.Mount.Cluster,
		IO: c.IO.String(), Started: time.Now().Format(time.RFC3339),
	}
	if !c.Keeping.Capacity.None() {
		d.Capacity = c.Keeping.Capacity.String()
	}
	return d
}

// mountPoint returns the path of the mount as the kernel will show it and clients will
// use it: absolute and without symbolic links. It does not touch the mount point
// itself, where a dead daemon's mount may not answer.
func mountPoint(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("resolve mount point %s: %w", dir, err)
	}
	if target, err := os.Readlink(abs); err == nil {
		return "", fmt.Errorf("mount point %s is a symbolic link: give its target, %s", dir, target)
	}
	parent, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return "", fmt.Errorf("resolve mount point %s: %w", dir, err)
	}
	return filepath.Join(parent, filepath.Base(abs)), nil
}

// dataDir creates the data directory if it is missing and returns its path without
// symbolic links.
func dataDir(dir string) (string, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create data directory %s: %w", dir, err)
	}
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", fmt.Errorf("resolve data directory %s: %w", dir, err)
	}
	if abs, err = filepath.EvalSymlinks(abs); err != nil {
		return "", fmt.Errorf("resolve data directory %s: %w", dir, err)
	}
	return abs, nil
}

// files lends files of the tree to the ring server.
type files struct {
	tree    *tree.Tree
	granted *grants
}

func (f files) Acquire(ino uint64, c cred.Caller, write bool) (ringserver.File, error) {
	file, err := f.tree.Acquire(ino, c, write)
	if mayBeInherited(err) && f.granted.regrant(ino, f.tree.Regrant) {
		file, err = f.tree.Acquire(ino, c, write)
	}
	if err != nil {
		return nil, err // not a typed nil
	}
	if c.Root() {
		return rootFile{file}, nil
	}
	return file, nil
}

// Path returns a file's path below the mount.
func (f files) Path(ino uint64) string { return f.tree.PathOf(ino) }

// rootFile is a file lent to the super-user, who may use all of the disk.
type rootFile struct{ *tree.File }

func (rootFile) Confine(int64) bool { return false }
