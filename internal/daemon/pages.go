package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	sdnotify "github.com/coreos/go-systemd/v22/daemon"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fdstore"
	"github.com/kv3fs/kv3fs/internal/fs/blockio"
	"github.com/kv3fs/kv3fs/internal/fs/health"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/httpserver"
	"github.com/kv3fs/kv3fs/internal/tracing"
)

// Pages configures a page service.
type Pages struct {
	Listen []httpserver.Address // empty: no page service
	// Optional makes an address that is in use a warning instead of an error. It is for
	// the default address, which only one of several daemons can have.
	Optional bool
	Token    string
	// Hosts are more names of this host, see httpserver.Options.
	Hosts  []string
	Limits httpserver.Limits
	Index  pageservice.Options // LateWrites may be Auto
	// Files say whose the page files in directories are. Those are the only ones that may be removed
	// to make room.
	Files []PageDir
	// StartOver lets this index hand out the pages although another one has, and forgets all keys.
	StartOver bool
	// Cluster says how hosts agree on one page index; nil: this host has one of its own.
	Cluster *PagesCluster
	// Drain bounds how long a stop waits for requests in flight.
	Drain time.Duration
	// Version is that of kv3fs.
	Version string
	Log     *slog.Logger
	// Audit gets what operators change; nil: nothing does.
	Audit *slog.Logger
	// Tracing says where traces go.
	Tracing Tracing
	// Descriptors are what was inherited, and keep the listeners over a restart; nil: nobody does.
	Descriptors *fdstore.Store

	tracer    *tracing.Tracer      // of the daemon
	health    *health.Store        // of the daemon's data directory; nil where there is no daemon
	registry  *prometheus.Registry // of the daemon; nil: the page service has its own
	stopGrace time.Duration        // a test's, in place of the constant
	etcdStart time.Duration        // likewise
}

// pagesDir is the directory of the page index in this host's part of the state
// directory, and of what all hosts share for theirs in the state directory itself.
const pagesDir = "pages"

// pagesPlace is where a page service keeps its state.
type pagesPlace struct {
	data    string
	host    string // this host's state directory; "": nothing can be written
	me      hostID
	shared  bool // other hosts may use the data directory
	late    host.LateWrites
	visible *visible // nil: this daemon moves no bytes
}

// RunPages runs a page service without a mount until ctx ends; identity and sharing are as in Config. It
// calls ready once with the addresses, when they accept requests. A stop ends within Pages.Drain and stopGrace, if need be with
// ErrStuck, as that of Run does.
func RunPages(ctx context.Context, dataDirectory, identity string, sharing Sharing, p Pages, ready func([]httpserver.Address)) error {
	stop := newStopping(ctx, p.stopGrace)
	defer stop.begin()
	return stop.await(p.Drain, dataDirectory, func() error { return runPages(ctx, dataDirectory, identity, sharing, p, stop, ready) })
}

// runPages is RunPages without a bound.
func runPages(ctx context.Context, dataDirectory, identity string, sharing Sharing, p Pages, stop *stopping, ready func([]httpserver.Address)) error {
	data, err := dataDir(dataDirectory)
	if err != nil {
		return err
	}
	me, err := thisHost(host.Local(), identity)
	if err != nil {
		return err
	}
	dir, err := pagesHome(data, me, p.Log)
	if err != nil {
		return err
	}
	on, err := dataStore(host.Local(), data, sharing, blockio.Auto, p.Log)
	if err != nil {
		return err
	}
	if p.tracer, err = p.Tracing.start(p.Version, p.Log); err != nil {
		return err
	}
	defer p.tracer.Close()
	dropFormer(p.Descriptors, p, "", p.Log)
	s, err := startPages(ctx, pagesPlace{data: data, host: dir, me: me, shared: on.shared, late: on.late}, p, nil)
	if err != nil {
		return err
	}
	_, _ = sdnotify.SdNotify(false, sdnotify.SdNotifyReady) // there may be nobody who wants to know
	ready(s.addresses())
	select {
	case <-ctx.Done():
	case <-s.done:
	}
	stop.begin()
	if ctx.Err() != nil {
		if err := p.Descriptors.RemoveAll(); err != nil {
			p.Log.Warn(stillKept, "err", err)
		}
	}
	stop.now("the page service")
	return s.stop()
}

// pageService is a running page service.
type pageService struct {
	listeners []*httpserver.Listener
	kept      keptListeners
	cancel    context.CancelFunc
	yield     func()       // has another host lead, if this one does; may be nil
	end       func() error // ends what the server answers from
	server    *httpserver.Server
	lock      *os.File // see lockPages
	done      chan struct{}
	err       error // valid once done is closed
}

// startPages opens the page index and serves it until stop. It opens the
// listeners first, since an address in use is the likeliest failure. ctx ends only the start.
func startPages(ctx context.Context, at pagesPlace, p Pages, files *pageFiles) (_ *pageService, err error) {
	s := &pageService{done: make(chan struct{}), kept: keptListeners{store: p.Descriptors}}
	defer func() {
		if err != nil {
			s.kept.end(p.Log)
			s.closeListeners()
			s.unlock()
		}
	}()
	for _, a := range p.Listen {
		l, err := s.kept.listen(fdstore.Pages, a, p.Log)
		if err != nil {
			return nil, err
		}
		s.listeners = append(s.listeners, l)
	}
	if at.shared || p.Cluster != nil {
		if s.lock, err = lockPages(at.host); err != nil {
			return nil, err
		}
	}
	if p.Index.MemoryBytes == 0 {
		p.Index.MemoryBytes = pagesMemoryBytes(host.Local())
	}
	if p.Index.LateWrites == Auto {
		p.Index.LateWrites = at.lateWrites(p.Log)
	}
	if p.registry == nil {
		p.registry = newRegistry(p.Version)
	}
	o := httpserver.Options{
		Limits: p.Limits, Token: p.Token, Hosts: hostNames(p), Registry: p.registry, Log: p.Log, Audit: p.Audit, Times: p.Index.WithDefaults(),
		Health: p.health.Err,
	}
	if p.tracer != nil {
		o.Trace = p.tracer.Request
	}
	var d *httpserver.Server
	if p.Cluster != nil {
		d, err = s.startCluster(ctx, at, p, o, files)
	} else {
		d, err = s.startEmbedded(ctx, at, p, o, files)
	}
	if err != nil {
		return nil, err
	}
	s.server = d
	var run context.Context
	run, s.cancel = context.WithCancel(context.Background())
	go func() {
		defer close(s.done)
		s.err = d.Serve(run, s.listeners, func() (context.Context, context.CancelFunc) {
			return context.WithTimeout(context.Background(), p.Drain)
		})
		if run.Err() == nil {
			p.Log.Error("page service failed; restart the daemon to start it again", "err", s.err)
		}
		s.err = errors.Join(s.err, s.end()) // without listeners, this host must not lead
	}()
	for _, a := range s.addresses() {
		p.Log.Info("page service listens", "address", a.String(), "index", at.describe(p))
		if a.Exposed() && p.Token == "" {
			p.Log.Warn("page service is open to the network", "address", a.String(), "cure", "set a token, or listen on 127.0.0.1")
		}
	}
	return s, nil
}

// minPagesMemoryBytes is the least default of Pages.Index.MemoryBytes.
const minPagesMemoryBytes = 64 << 20

// pagesMemoryBytes returns how much memory the page index of a host may take: a small
// part, because the process also serves the mount, and garbage may double it.
func pagesMemoryBytes(h host.Host) int64 {
	memory, err := h.MemoryBytes()
	if err != nil {
		return minPagesMemoryBytes
	}
	return max(memory/32, minPagesMemoryBytes)
}

// lateWrites returns how long a write may still reach the data directory's files after it was given up, and logs it.
func (at pagesPlace) lateWrites(log *slog.Logger) time.Duration {
	switch {
	case at.late.For == 0:
	case at.late.Bounded:
		log.Info("pages whose writer gave them up rest longer: a write of a host that was cut off may still arrive", "late_writes", at.late.For, "cure", at.late.Cure)
	default:
		log.Warn("nothing bounds how late the file system may still send a write of a host that was cut off: one that comes later than is assumed can overwrite another key's page",
			"assumed", at.late.For, "cure", cmp.Or(at.late.Cure, "--pages-late-writes, as long as the longest outage"))
	}
	return at.late.For
}

// hostNames returns the names of this host that requests may be for.
func hostNames(p Pages) []string {
	names := append([]string(nil), p.Hosts...)
	if name, err := os.Hostname(); err == nil {
		names = append(names, name)
	}
	for _, a := range p.Listen {
		if name := a.Host(); name != "" {
			names = append(names, name)
		}
	}
	return names
}

// probe reports whether the file system of the page index accepts writes.
func probe(file string) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(make([]byte, 4096))
	return errors.Join(err, f.Sync(), f.Close(), os.Remove(file))
}

// addresses returns where engines find the service.
func (s *pageService) addresses() (all []httpserver.Address) {
	for _, l := range s.listeners {
		if l.Handler == nil {
			all = append(all, l.Address)
		}
	}
	return all
}

// describe says where the page index is.
func (at pagesPlace) describe(p Pages) string {
	if p.Cluster != nil {
		return p.Cluster.Store.String()
	}
	return filepath.Join(at.host, pagesDir)
}

// readiness returns what says whether engines can use the service. On a nil service it is nil.
func (s *pageService) readiness() func(context.Context) error {
	if s == nil {
		return nil
	}
	return s.server.Ready
}

// stop answers the requests that have arrived and closes the page index. Where another host can lead, it does so first: other
// hosts need not wait for slow clients of this one. On a nil service it does nothing.
func (s *pageService) stop() error {
	if s == nil {
		return nil
	}
	if s.yield != nil {
		s.yield()
	}
	s.cancel()
	<-s.done
	defer s.unlock()
	if s.err != nil {
		return fmt.Errorf("stop the page service: %w", s.err)
	}
	return nil
}

// holdBack has requests wait, see httpserver.Server.HoldBack. On a nil service it does nothing.
func (s *pageService) holdBack(ctx context.Context) (resume func(), err error) {
	if s == nil {
		return func() {}, nil
	}
	return s.server.HoldBack(ctx)
}

// leave has the paths of listeners stay: the next daemon has the listeners. On a nil service it does nothing.
func (s *pageService) leave() {
	if s == nil {
		return
	}
	for _, l := range s.listeners {
		l.Stay()
	}
}

func (s *pageService) unlock() {
	if s.lock != nil {
		s.lock.Close()
	}
}

func (s *pageService) closeListeners() {
	for _, l := range s.listeners {
		l.Close()
	}
}

// pagesOf starts the page service of a daemon. It returns nil where there is none.
func pagesOf(ctx context.Context, at pagesPlace, p Pages, files *pageFiles) (*pageService, error) {
	switch {
	case len(p.Listen) == 0, at.host == "" && p.Optional:
		return nil, nil
	case at.host == "":
		return nil, errors.New("the page service needs a data directory that it can write to: --pages-listen off serves without it")
	}
	s, err := startPages(ctx, at, p, files)
	switch {
	case err == nil:
		return s, nil
	case p.Optional && errors.Is(err, unix.EADDRINUSE):
		p.Log.Warn("no page service for vLLM and SGLang", "err", err, "cure", "--pages-listen HOST:PORT, or off")
		return nil, nil
	case p.Optional && errors.Is(err, errOtherPages):
		p.Log.Error("no page service for vLLM and SGLang on this host", "err", err)
		return nil, nil
	}
	return nil, fmt.Errorf("%w (--pages-listen off serves without vLLM's and SGLang's page service)", err)
}
