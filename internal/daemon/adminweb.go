package daemon

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kv3fs/kv3fs/internal/admin/web"
	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/fs/health"
)

// AdminWeb configures the address of metrics, health and readiness.
type AdminWeb struct {
	// Address is HOST:PORT; "": there is none. Token, TLS and Profiles are as in web.Options.
	Address  string
	Token    string
	TLS      *tls.Config
	Profiles bool
	// Optional makes an address that is in use a warning instead of an error. It is for the default
	// address, which only one of several daemons can have.
	Optional bool
}

// Validate reports an address that other hosts reach without a token and TLS.
func (a AdminWeb) Validate() error { return a.options().Validate() }

func (a AdminWeb) options() web.Options {
	return web.Options{Address: a.Address, Token: a.Token, TLS: a.TLS, Profiles: a.Profiles}
}

// newRegistry returns what a daemon's /metrics are collected from, with what every process has.
func newRegistry(version string) *prometheus.Registry {
	r := prometheus.NewRegistry()
	build := buildInfo(version)
	build.Set(1)
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), build)
	return r
}

// buildInfo says which kv3fs runs.
func buildInfo(version string) prometheus.Gauge {
	return prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "kv3fs_build_info", Help: "1; the labels say which kv3fs runs.",
		ConstLabels: prometheus.Labels{"version": version, "go": runtime.Version()},
	})
}

// readiness is what /readyz asks.
type readiness struct {
	serving  atomic.Bool // from when the mount serves clients until the daemon stops
	health   *health.Store
	space    *dataSpace
	readonly bool                        // nothing is saved, so it needs no space
	pages    func(context.Context) error // nil: no page service
}

func (r *readiness) checks() []web.Check {
	all := []web.Check{
		{Name: "mount", Ask: func(context.Context) error {
			if !r.serving.Load() {
				return errors.New("the daemon is starting or stopping")
			}
			return nil
		}},
		{Name: "data directory", Ask: func(context.Context) error { return r.health.Err() }},
	}
	if !r.readonly {
		all = append(all, web.Check{Name: "space", Ask: r.roomy})
	}
	if r.pages != nil {
		all = append(all, web.Check{Name: "page service", Ask: r.pages})
	}
	return all
}

// roomy returns an error where saves fail, or are about to.
func (r *readiness) roomy(ctx context.Context) error {
	s, err := r.space.look(ctx)
	switch {
	case err != nil:
		return fmt.Errorf("the file system does not say how much is free: %w", err)
	case s.bytes > 0 && s.freeBytes < leastFree:
		return fmt.Errorf("the file system has %d bytes free: saves fail with ENOSPC; give serve a --capacity below what others leave, or remove files", s.freeBytes)
	case s.freeFiles == 0 && s.files > 0:
		return errors.New("the file system has no inode left: saves fail with ENOSPC; remove files")
	}
	return nil
}

// startAdminWeb begins to answer, if that is wanted. The caller closes what it returns, which may be nil.
func startAdminWeb(a AdminWeb, kept *fdstore.Store, registry *prometheus.Registry, ready *readiness, shown *view, version string, log *slog.Logger) (*web.Server, error) {
	if a.Address == "" {
		return nil, nil
	}
	o := a.options()
	o.Metrics, o.Ready, o.Version, o.Log = registry, ready.checks(), version, log
	o.API = shown.handler(func() string {
		if s := shown.web.Load(); s != nil && s.HasToken() {
			return ""
		}
		return "give serve a token with --admin-token-file, or ask at the daemon's unix socket, as kv3fs does" // every user of this host reaches the address
	})
	var name string
	var err error
	o.Listener, name, err = adminListener(kept, a.Address, log)
	var s *web.Server
	if err == nil {
		if s, err = web.Start(o); err != nil {
			err = errors.Join(err, kept.Remove(name))
		}
	}
	switch {
	case err == nil:
		shown.web.Store(s)
		log.Info("metrics, health and readiness", "address", s.URL())
		return s, nil
	case a.Optional && errors.Is(err, web.ErrInUse):
		log.Warn("no metrics, health and readiness", "err", err, "cure", "--admin-listen HOST:PORT, or off")
		return nil, nil
	}
	return nil, err
}
