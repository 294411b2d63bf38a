package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"time"

	sdnotify "github.com/coreos/go-systemd/v22/daemon"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/keeper"
	"github.com/kv3fs/kv3fs/internal/keeper/lease"
	"github.com/kv3fs/kv3fs/internal/layout/kv3fs"
	"github.com/kv3fs/kv3fs/internal/logpace"
)

// KeepConfig configures the keeper of a directory that others serve.
type KeepConfig struct {
	Dir         string
	MustBeMount bool
	Identity    string // of this host; "": see thisHost
	Keeping     Keeping

	Lease          time.Duration // after how long without a sign of life another host takes over
	RefreshEvery   time.Duration // how often to look for what has changed
	RescanEvery    time.Duration // in what time to look at everything
	LooksPerSecond int

	Log   *slog.Logger
	Audit *slog.Logger // gets what operators do; nil: nobody does
}

const (
	// A lease is renewed, and watched, so many times in its period.
	looksPerPeriod = 6

	// keepStop bounds how long a stop waits for calls to a file system that hangs.
	keepStop = 30 * time.Second

	// backEvery is how often a directory that is away is looked for.
	backEvery = 5 * time.Second

	// useBonus is what each use counts for. Uses are seen too late and too rarely to learn from.
	useBonus = 150 * time.Second
)

// Keep keeps a directory within its capacity until ctx ends, as long as it is the one of all its keepers
// whose turn it is. It calls ready once, when it knows whether it is.
func Keep(ctx context.Context, c KeepConfig, ready func(dir string, keeps bool)) error {
	if c.Audit == nil {
		c.Audit = slog.New(slog.DiscardHandler)
	}
	me, err := thisHost(host.Local(), c.Identity)
	if err != nil {
		return err
	}
	d, err := openKept(&c, "")
	if err != nil {
		return err
	}
	s := &keepService{KeepConfig: c, back: backEvery, me: lease.Holder{Identity: me.Identity, Host: me.Host}, ready: func(keeps bool) {
		_, _ = sdnotify.SdNotify(false, sdnotify.SdNotifyReady) // systemd may not be there
		ready(d.path, keeps)
	}}
	done := make(chan error, 1)
	go func() { done <- s.run(ctx, d) }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
	}
	_, _ = sdnotify.SdNotify(false, sdnotify.SdNotifyStopping)
	select {
	case err := <-done:
		return err
	case <-time.After(keepStop):
		return fmt.Errorf("a call to %s has not returned for %v: ending without giving the lease back, which another host takes after %v", d.path, keepStop, c.Lease)
	}
}

// keepService keeps one directory, through all its comings and goings.
type keepService struct {
	KeepConfig
	me    lease.Holder
	ready func(keeps bool) // nil once called
	back  time.Duration    // how often a directory that is away is looked for
	pace  logpace.Pace
	works atomic.Pointer[keeper.Keeper] // while this host has the lease
}

func (s *keepService) run(ctx context.Context, d *keptDir) error {
	for {
		err := s.serve(ctx, d)
		d.close()
		if !errors.Is(err, errAway) || ctx.Err() != nil {
			return err
		}
		s.Log.Error("the directory is away: nothing is removed until it is back", "directory", d.path, "err", err)
		if d = s.await(ctx, d.id); d == nil {
			return nil
		}
		s.Log.Info("the directory is back", "directory", d.path)
	}
}

// await waits until the directory with an id is back; nil: ctx has ended.
func (s *keepService) await(ctx context.Context, id string) *keptDir {
	tick := time.NewTicker(s.back)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		d, err := openKept(&s.KeepConfig, id)
		if err == nil {
			return d
		}
		if more, now := s.pace.Log("away"); now {
			s.Log.Warn("waiting for the directory to come back", "err", err, "more", more)
		}
	}
}

// serve keeps a directory whenever it has the lease, until ctx ends or the directory goes away.
func (s *keepService) serve(ctx context.Context, d *keptDir) (err error) {
	l, err := lease.New(d.state, lease.Options{Period: s.Lease, Local: isLocal(d.path), Me: s.me})
	if err != nil {
		return err
	}
	defer func() {
		if failed := l.Release(); failed != nil {
			s.Log.Warn("cannot give the lease back: another host takes it once it has run out", "after", s.Lease, "err", failed)
		}
	}()
	tick := time.NewTicker(s.Lease / looksPerPeriod)
	defer tick.Stop()
	var holder lease.Holder
	var at *tenure
	var token uint64
	defer func() { err = errors.Join(err, at.end()) }() // before the lease is given back
	for {
		if err := d.look(); err != nil {
			return err
		}
		switch {
		case at == nil:
			var standing lease.Standing
			if standing, err = l.Try(); err != nil {
				break
			}
			if standing.Held {
				s.Log.Info("keeping the directory: this host has the lease", "directory", d.path, "token", standing.Token, "identity", s.me.Identity)
				if at, err = s.begin(d, l); err != nil && !ofDirectory(err) {
					return err
				}
				if err != nil { // another host may have more luck
					err = errors.Join(err, l.Release())
				}
			} else if standing.Holder != holder {
				s.Log.Info("standing by: another keeper has the lease", "directory", d.path, "token", standing.Token, "holder", standing.Holder.String())
			}
			holder = standing.Holder
		default:
			if err = l.Renew(); errors.Is(err, lease.ErrLost) {
				s.Log.Warn("lost the lease: nothing more is removed from here, standing by", "directory", d.path, "err", err, "removed", at.keeper.Stats().Evicted)
				err = at.end()
				at, holder = nil, lease.Holder{}
			}
			if is := l.Token(); is != token && at != nil {
				s.Log.Warn("the lease had run out, perhaps because this process was stopped; nobody has taken it, so it goes on", "directory", d.path, "token", is)
			}
		}
		if err != nil {
			if more, now := s.pace.Log("lease"); now {
				s.Log.Warn("the directory fails: cannot renew the lease, or not begin to keep it; trying again", "directory", d.path, "err", err, "more", more)
			}
		}
		token = l.Token()
		if s.ready != nil {
			s.ready(at != nil)
			s.ready = nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		case <-at.lost():
		}
	}
}

// ofDirectory reports whether an error is that of a call to the directory, which may come to work again, and not of what
// was asked for or is in there.
func ofDirectory(err error) bool {
	var errno syscall.Errno
	return errors.As(err, &errno)
}

// tenure is a keeper at work while this host has the lease.
type tenure struct {
	keeper *keeper.Keeper
	mute   func() // nobody can ask about it any more
	cancel context.CancelFunc
	gone   context.Context // ends when the lease is found to be lost
	done   chan error
	log    *slog.Logger
}

// begin has a keeper at work on a directory whose lease this host has.
func (s *keepService) begin(d *keptDir, l *lease.Lease) (*tenure, error) {
	atimes, err := keeper.ProbeAtimes(d.state)
	if err != nil {
		s.Log.Warn("cannot find out whether atimes move; the time of the last change counts as last use", "err", err)
	}
	behind := l.Behind()
	s.tellTimes(d, atimes, behind)
	gone, lose := context.WithCancel(context.Background())
	k, err := newKept(&s.KeepConfig, d.path, filepath.Join(d.path, kv3fs.KeepDir), l.Token, &keeper.Silent{
		Atime: atimes.Tell(), RefreshEvery: s.RefreshEvery, LooksPerSecond: s.LooksPerSecond, Behind: behind,
		May: func() error {
			err := l.Check()
			if errors.Is(err, lease.ErrLost) {
				lose()
			}
			return err
		},
	})
	if err != nil {
		lose()
		return nil, err
	}
	s.Log.Info("it is being scanned", "directory", d.path, "capacity", s.Keeping.Capacity.String(), "limit_bytes", k.Inventory().Root().Limit(),
		"high_watermark", k.HighPercent, "low_watermark", k.LowPercent, "grace", s.Keeping.Grace, "looks_per_second", s.LooksPerSecond)
	t := &tenure{keeper: k, gone: gone, done: make(chan error, 1), log: s.Log}
	run, cancel := context.WithCancel(gone)
	t.cancel = func() { cancel(); lose() }
	go func() { t.done <- k.Run(run) }()
	stop := s.operate(d, k)
	s.works.Store(k)
	t.mute = func() {
		s.works.Store(nil)
		stop()
	}
	return t, nil
}

// operate starts the admin socket of a keeper, which each host has in a directory of its own, and returns
// what ends it.
func (s *keepService) operate(d *keptDir, k *keeper.Keeper) (stop func()) {
	own := filepath.Join(hostsDir, s.me.Identity)
	if err := d.state.MkdirAll(own, 0o700); err != nil {
		s.Log.Warn("no admin socket: kv3fs du, ls, stat, evict, quota, ttl and pin do not work", "err", err)
		return func() {}
	}
	return operate(filepath.Join(d.path, kv3fs.KeepDir, own), k, scrubber{}, nil, newReloader(s.Audit), nil, errNotKept, s.Log)
}

// tellTimes says what the last use of a file is taken from, and what clocks say.
func (s *keepService) tellTimes(d *keptDir, atimes keeper.Atimes, behind time.Duration) {
	options, _ := keeper.AtimesOf(d.path)
	meaning := "files go in the order of their last change: reads do not show"
	switch atimes {
	case keeper.AtimesDaily:
		meaning = "files go in the order of their last use; the first read after a change shows, and then one a day"
	case keeper.AtimesAlways:
		meaning = "files go in the order of their last use"
	}
	s.Log.Info("the last use of a file is the later of its mtime and, if it moves, its atime", "atime", atimes.String(), "mount_options", options.String(), "meaning", meaning)
	const tolerated = 5 * time.Second
	if behind.Abs() > tolerated {
		s.Log.Warn("the clock that gives files their times differs from this host's: files are left alone for so much longer", "directory", d.path, "behind", behind.Round(time.Second))
	}
}

// newKept returns the keeper of a directory that others serve. Its log has the token that a removal was made under.
func newKept(c *KeepConfig, dir, state string, token func() uint64, silent *keeper.Silent) (*keeper.Keeper, error) {
	var k *keeper.Keeper
	remove := func(dir, name string, want keeper.Victim) error {
		under := token() // it may be lost by the time the file is gone
		err := k.Inventory().Unlink(dir, name, want)
		if err == nil {
			c.Log.Debug("removed a file", "directory", dir, "name", name, "bytes", want.SizeBytes, "token", under)
		}
		return err
	}
	k, err := keeper.New(keeper.Options{
		Dir: dir, StateDir: state, Skip: kv3fs.KeepDir,
		Capacity: c.Keeping.Capacity, HighPercent: c.Keeping.HighPercent, LowPercent: c.Keeping.LowPercent, Grace: c.Keeping.Grace,
		UseBonus: useBonus, Silent: silent, Unlink: remove, Rescan: cmp.Or(c.RescanEvery, time.Hour), Log: c.Log,
	})
	if err != nil {
		return nil, fmt.Errorf("keep %s within its capacity: %w", dir, err)
	}
	return k, nil
}

// lost is closed when the lease is found to be lost; nil without a tenure.
func (t *tenure) lost() <-chan struct{} {
	if t == nil {
		return nil
	}
	return t.gone.Done()
}

// end stops the keeper, if there is one, once its last call has returned.
func (t *tenure) end() error {
	if t == nil {
		return nil
	}
	t.mute()
	t.cancel()
	if err := <-t.done; err != nil {
		t.log.Warn("cannot save the use of files; the next keeper goes by the times that the file system has", "err", err)
	}
	return t.keeper.Close()
}
