package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	read  func() (Reload, error) // nil: there is nothing to read
	data  string
	keep  *keeping
	rings *ringserver.Server
	web   *web.Server
	audit *slog.Logger

	mu      sync.Mutex // one reload at a time
	stopped bool
}

var (
	errStopping = errors.New("the daemon is stopping: nothing was changed")
	errNoReload = errors.New("this daemon cannot read its configuration again: restart it")
)

// Why a setting that may change otherwise needs a restart.
const (
	noKeeperYet  = "the daemon keeps no limit now, or others of its directory: files are counted from the start only"
	notLimitless = "a capacity cannot be given or taken away while the daemon serves, only changed"
	noAdminYet   = "the daemon has no admin address"
	openAlready  = "the admin address is open already, with TLS or without"
)

// reload reads the configuration and puts into effect what may change while the daemon serves. All of it is checked first: after
// an error nothing has changed.
func (r *reloader) reload(by []any) ([]Setting, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	settings, err := r.locked()
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

func (r *reloader) locked() ([]Setting, error) {
	switch {
	case r.stopped:
		return nil, errStopping
	case r.read == nil:
		return nil, errNoReload
	}
	next, err := r.read()
	if err != nil {
		return nil, err
	}
	changed := map[Part]bool{}
	fix := func(s *Setting, why string) { s.Part, s.Restart = Fixed, why }
	for i := range next.Settings {
		s := &next.Settings[i]
		switch {
		case s.Part == OfKeeping && r.keep == nil:
			fix(s, noKeeperYet)
		case s.Part == OfKeeping && next.Keeping.Capacity.None() != r.keep.limitless():
			fix(s, notLimitless)
		case s.Part == OfAdmin && r.web == nil:
			fix(s, noAdminYet)
		case s.Part == OfAdmin && (next.Admin.TLS == nil) != !r.web.HasTLS():
			fix(s, openAlready)
		}
		changed[s.Part] = true
	}
	limits := keeper.Limits{Capacity: next.Keeping.Capacity, HighPercent: next.Keeping.HighPercent, LowPercent: next.Keeping.LowPercent, Grace: next.Keeping.Grace}
	if changed[OfKeeping] {
		if err := fits(r.data, limits.Capacity); err != nil {
			return nil, fmt.Errorf("capacity: %w", err)
		}
		if err := r.keep.SetLimits(limits); err != nil { // the last that can fail, and the first that changes something
			return nil, err
		}
	}
	if changed[OfRings] {
		r.rings.SetSlowIO(next.SlowIO)
	}
	if changed[OfAdmin] {
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

// stop has further reloads fail, and waits for the one under way.
func (r *reloader) stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.stopped = true
}

// asked reloads for an operator at the admin socket.
func (r *reloader) asked(_ context.Context, by admin.Caller) ([]admin.Setting, error) {
	settings, err := r.reload(by.Attributes())
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
			_, _ = r.reload([]any{"signal", "SIGHUP"}) // the log has it
		}
	}
}

// limitless reports whether a keeper has no capacity, and is there for quotas and the like.
func (k *keeping) limitless() bool { return k.Capacity.None() }
