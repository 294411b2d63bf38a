package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/internal/admin"
	"github.com/kv3fs/kv3fs/internal/admin/web"
	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
	"github.com/kv3fs/kv3fs/internal/keeper"
)

// Setting is a flag whose value is another one than the one in effect.
type Setting struct {
	Name, From, To string
	Part           Part
	Restart        string // why it needs a restart, if Part is Fixed
}

// Part is what of a daemon a setting belongs to.
type Part int

// The parts. What is Fixed needs a restart; the log is the caller's.
const (
	Fixed Part = iota
	OfLog
	OfRings
	OfKeeping
	OfAdmin
)

// Reload is a configuration that was read anew, and is valid as far as can be said without the daemon.
type Reload struct {
	Settings []Setting
	Keeping  Keeping
	SlowIO   time.Duration
	Admin    AdminWeb
	// Commit is called once all of it is in effect, but for settings that need a restart.
	Commit func([]Setting)
}

// reloader changes a daemon while it serves.
type reloader struct {
	read   func() (Reload, error) // nil: there is nothing to read
	data   string
	shared bool // the data directory, with other hosts
	keep   *keeping
	rings  *ringserver.Server
	web    *web.Server
	audit  *slog.Logger

	one     chan struct{} // held by the reload that reads or changes something
	ending  chan struct{} // closed when the daemon stops
	mu      sync.Mutex    // held while something changes
	stopped bool
}

// newReloader returns one that reads nothing yet.
func newReloader(audit *slog.Logger) *reloader {
	return &reloader{audit: audit, one: make(chan struct{}, 1), ending: make(chan struct{})}
}

// reloadTime bounds how long files are read: one may be on a disk that hangs, or a pipe.
const reloadTime = 30 * time.Second

var (
	errStopping = errors.New("the daemon is stopping: nothing was changed")
	errNoReload = errors.New("this daemon cannot read its configuration again: restart it")
	errNotRead  = fmt.Errorf("the configuration, or a token or certificate that it names, could not be read within %v: it is a pipe, or on a disk that hangs, as the data directory's may; nothing was changed", reloadTime)
)

// Why a setting that may change otherwise needs a restart.
const (
	noKeeperYet  = "the daemon keeps no limit now, or others of its directory: files are counted from the start only"
	notLimitless = "a capacity cannot be given or taken away while the daemon serves, only changed"
	keptByTurns  = "the hosts that share the directory keep it by turns, each with the limits of its start"
	noAdminYet   = "the daemon has no admin address"
	otherAddress = "it is for another admin address than the open one"
	openAlready  = "the admin address is open already, with TLS or without"
)

// reload reads the configuration and puts into effect what may change while the daemon serves. All of it is checked first: after
// an error nothing has changed. It ends with ctx, and when the daemon stops.
func (r *reloader) reload(ctx context.Context, by []any) ([]Setting, error) {
	settings, err := r.bounded(ctx)
	if err != nil {
		r.audit.Warn("reload refused: nothing was changed", append([]any{"call", "reload", "err", err}, by...)...)
		return nil, err
	}
	r.audit.Info("reloaded the configuration", append([]any{"call", "reload", "changed", len(settings)}, by...)...)
	for _, s := range settings {
		if s.Part == Fixed {
			r.audit.Warn("a changed setting needs a restart", "setting", s.Name, "from", s.From, "to", s.To, "reason", s.Restart)
		} else {
			r.audit.Info("a setting has changed", "setting", s.Name, "from", s.From, "to", s.To)
		}
	}
	return settings, nil
}

// bounded is reload without the log.
func (r *reloader) bounded(ctx context.Context) ([]Setting, error) {
	if r.read == nil {
		return nil, errNoReload
	}
	ctx, cancel := context.WithTimeoutCause(ctx, reloadTime, errNotRead)
	defer cancel()
	select {
	case <-r.ending:
		return nil, errStopping
	default:
	}
	select {
	case r.one <- struct{}{}:
	case <-r.ending:
		return nil, errStopping
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	type read struct {
		Reload
		err error
	}
	// What hangs ends with the file, or the process; until then no other reload reads.
	done, given := make(chan read), make(chan struct{})
	go func() {
		next, err := r.read()
		if err == nil {
			err = r.check(&next)
		}
		select {
		case done <- read{next, err}:
		case <-given:
			<-r.one
		}
	}()
	select {
	case next := <-done:
		defer func() { <-r.one }()
		if next.err != nil {
			return nil, next.err
		}
		return r.apply(next.Reload)
	case <-r.ending:
		close(given)
		return nil, errStopping
	case <-ctx.Done():
		close(given)
		return nil, context.Cause(ctx)
	}
}

// check says which settings need a restart, and reports what this daemon cannot do.
func (r *reloader) check(next *Reload) error {
	fix := func(s *Setting, why string) { s.Part, s.Restart = Fixed, why }
	// Token and certificate go with the address for which they were checked.
	moved := slices.ContainsFunc(next.Settings, func(s Setting) bool { return s.Part == Fixed && strings.HasPrefix(s.Name, "admin-") })
	for i := range next.Settings {
		s := &next.Settings[i]
		switch {
		case s.Part == OfKeeping && r.shared:
			fix(s, keptByTurns)
		case s.Part == OfKeeping && r.keep == nil:
			fix(s, noKeeperYet)
		case s.Part == OfKeeping && next.Keeping.Capacity.None() != r.keep.limitless():
			fix(s, notLimitless)
		case s.Part == OfAdmin && r.web == nil:
			fix(s, noAdminYet)
		case s.Part == OfAdmin && moved:
			fix(s, otherAddress)
		case s.Part == OfAdmin && (next.Admin.TLS == nil) != !r.web.HasTLS():
			fix(s, openAlready)
		}
	}
	if next.changes(OfKeeping) {
		if err := fits(r.data, next.Keeping.Capacity); err != nil {
			return fmt.Errorf("capacity: %w", err)
		}
	}
	return nil
}

// changes reports whether a setting of a part is different.
func (n *Reload) changes(p Part) bool {
	return slices.ContainsFunc(n.Settings, func(s Setting) bool { return s.Part == p })
}

// apply puts into effect what was checked.
func (r *reloader) apply(next Reload) ([]Setting, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.stopped {
		return nil, errStopping
	}
	if next.changes(OfKeeping) {
		limits := keeper.Limits{Capacity: next.Keeping.Capacity, HighPercent: next.Keeping.HighPercent, LowPercent: next.Keeping.LowPercent, Grace: next.Keeping.Grace}
		if err := r.keep.SetLimits(limits); err != nil { // the only one that can fail, and the first that changes something
			return nil, err
		}
	}
	if next.changes(OfRings) {
		r.rings.SetSlowIO(next.SlowIO)
	}
	if next.changes(OfAdmin) {
		r.web.SetAccess(next.Admin.Token, next.Admin.TLS)
	}
	next.Commit(next.Settings)
	return next.Settings, nil
}

// audit returns what says what operators do.
func (c *Config) audit() *slog.Logger {
	if c.Lines == nil {
		return slog.New(slog.DiscardHandler)
	}
	return c.Lines.Audit()
}

// stop has further reloads fail, and the one under way if it has changed nothing yet; else it waits for that.
func (r *reloader) stop() {
	close(r.ending)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
}

// asked reloads for an operator at the admin socket.
func (r *reloader) asked(ctx context.Context, by admin.Caller) ([]admin.Setting, error) {
	settings, err := r.reload(ctx, by.Attributes())
	all := []admin.Setting{}
	for _, s := range settings {
		all = append(all, admin.Setting{Name: s.Name, From: s.From, To: s.To, Restart: s.Restart})
	}
	return all, err
}

// follow reloads for each SIGHUP until ctx ends.
func (r *reloader) follow(ctx context.Context, hangups <-chan struct{}) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			_, _ = r.reload(ctx, []any{"signal", "SIGHUP"}) // the log has it
		}
	}
}

// limitless reports whether a keeper has no capacity, and is there for quotas and the like.
func (k *keeping) limitless() bool { return k.Capacity.None() }
