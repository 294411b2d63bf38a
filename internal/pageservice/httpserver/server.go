package httpserver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/semaphore"

	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
)

// Options are the options of New. The zero value selects the defaults.
type Options struct {
	Limits Limits
	// Token is what clients must present; empty: every client is served.
	Token string
	// Probe reports whether the disk under the index takes writes; nil: readiness does
	// not depend on the disk.
	Probe func() error
	// Registry takes the metrics; nil: one that only this server has.
	Registry *prometheus.Registry
	Log      *slog.Logger
}

// Server answers the requests of the page service. All methods may be called at once.
type Server struct {
	index   *index.Index
	limits  Limits
	token   token
	probe   func() error
	log     *slog.Logger
	routes  routes
	calls   calls
	slots   chan struct{}       // one for each request that is being executed
	large   *semaphore.Weighted // the bytes of large bodies
	writes  writes
	disk    disk
	stats   *stats
	metrics *metrics
	scrape  http.Handler
}

// New returns a server of an index, which remains the caller's.
func New(x *index.Index, o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	s := &Server{
		index: x, limits: o.Limits.WithDefaults(), token: newToken(o.Token),
		probe: o.Probe, log: o.Log, routes: newRoutes(),
	}
	s.slots = make(chan struct{}, s.limits.Requests)
	s.large = semaphore.NewWeighted(s.limits.LargeBytes)
	s.stats = &stats{query: x.Stat, one: make(chan struct{}, 1)}
	s.metrics = newMetrics(o.Registry, s.stats)
	s.scrape = scrapeHandler(o.Registry)
	return s
}

// Handler returns the handler of a listener that is bound to a namespace. "" is the
// default namespace, from which the prefix /ns/NAME leads to the others.
func (s *Server) Handler(namespace string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { s.serve(w, r, namespace) })
}

func (s *Server) serve(w http.ResponseWriter, r *http.Request, bound string) {
	switch r.URL.Path {
	case "/healthz":
		s.healthz(w)
		return
	case "/readyz":
		s.readyz(w, r)
		return
	}
	if !allows(s.token, r) {
		refuse(w, refusal{http.StatusUnauthorized, "the token is missing or wrong"})
		return
	}
	if r.URL.Path == "/metrics" {
		s.scrape.ServeHTTP(w, r)
		return
	}
	if s.admin(w, r) {
		return
	}
	namespace, path := bound, r.URL.Path
	if bound == "" {
		var ok bool
		if namespace, path, ok = splitNamespace(path); !ok {
			refuse(w, refusal{http.StatusNotFound, "Not Found"})
			return
		}
	}
	found, rank := s.routes.find(path)
	switch {
	case found == nil:
		refuse(w, refusal{http.StatusNotFound, "Not Found"})
	case r.Method != http.MethodPost:
		refuse(w, refusal{http.StatusMethodNotAllowed, "Method Not Allowed"})
	default:
		s.answer(w, r, found, namespace, rank)
	}
}

// answer reads and executes a request, answers it, and counts it.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, to *route, namespace, rank string) {
	begin := time.Now()
	status := s.take(w, r, to, namespace, rank)
	took := time.Since(begin)
	s.metrics.count(namespace, to, status, took)
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		s.log.Debug("request", "route", to.name, "namespace", namespace, "status", status, "took", took, "from", r.RemoteAddr)
	}
}

// take reads the body, and executes the request if a slot is free. It takes the slot
// after the body, so that clients that are slow to send do not block others.
func (s *Server) take(w http.ResponseWriter, r *http.Request, to *route, namespace, rank string) (status int) {
	c := s.calls.get(s, namespace)
	defer s.calls.put(c)
	if to.ranked {
		var ok bool
		if c.pathRank, ok = parseRank(rank); !ok {
			refuseRank(w, rank)
			return http.StatusUnprocessableEntity
		}
	}
	leave, err := s.enter(r)
	if err == nil {
		defer leave()
		err = c.read(w, r)
	}
	if err != nil {
		answer := s.translate(err)
		refuseRest(w, r, answer)
		return answer.status
	}
	select {
	case s.slots <- struct{}{}:
		defer func() { <-s.slots }()
		return s.execute(w, r, to, c)
	default:
		refuse(w, refusal{http.StatusServiceUnavailable, "too many requests at once"})
		return http.StatusServiceUnavailable
	}
}

// enter waits until there is memory for a large body, of the size that its head says.
func (s *Server) enter(r *http.Request) (leave func(), err error) {
	size := r.ContentLength
	if size < 0 {
		size = s.limits.BodyBytes // the head does not say
	}
	if size <= smallBody || size > s.limits.BodyBytes { // the latter is not read
		return func() {}, nil
	}
	size = min(size, s.limits.LargeBytes)
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Work)
	defer cancel()
	if s.large.Acquire(ctx, size) != nil {
		return nil, refusal{http.StatusServiceUnavailable, "too many large requests at once"}
	}
	return func() { s.large.Release(size) }, nil
}

func (s *Server) execute(w http.ResponseWriter, r *http.Request, to *route, c *call) (status int) {
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Work)
	defer cancel()
	c.ctx = ctx
	var err error
	if !to.noBody {
		err = c.parse(to.form)
	}
	if err == nil {
		err = to.do(c)
	}
	switch {
	case err != nil:
		answer := s.translate(err)
		refuse(w, answer)
		return answer.status
	case len(c.out) == 0:
		w.WriteHeader(http.StatusNoContent)
		return http.StatusNoContent
	}
	send(w, http.StatusOK, c.out)
	return http.StatusOK
}

// translate returns the HTTP form of an error.
func (s *Server) translate(err error) refusal {
	var known refusal
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, errMalformed):
		return refusal{http.StatusInternalServerError, err.Error()}
	case errors.Is(err, pageservice.ErrInvalid):
		return refusal{http.StatusBadRequest, err.Error()}
	case errors.Is(err, pageservice.ErrUnavailable), errors.Is(err, pageservice.ErrClosed):
		s.writes.failed(s.log, err)
		return refusal{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return refusal{http.StatusServiceUnavailable, "the page index did not answer in time"}
	}
	s.log.Error("page index failed", "err", err)
	return refusal{http.StatusInternalServerError, err.Error()}
}
