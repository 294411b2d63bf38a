package httpserver

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/bearer"
	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/internal/logpace"
	"github.com/kv3fs/kv3fs/internal/pageservice"
	"github.com/kv3fs/kv3fs/internal/pageservice/index"
)

// Options are the options of New. The zero value selects the defaults.
type Options struct {
	Limits Limits
	// Token is what clients must present; empty: every client is served.
	Token string
	// Hosts are names of this host, beside localhost: a request that changes something and
	// is for another name is refused, because a web page may have sent it.
	Hosts []string
	// Probe reports whether the disk under the index takes writes; nil: readiness does
	// not depend on the disk.
	Probe func() error
	// Health returns what is wrong with the data directory, without waiting for it. nil: nothing ever is.
	Health func() error
	// Times bound how old an answer may be when it is sent; zero: any age.
	Times pageservice.Options
	// Store says where the index is kept, and who leads; nil: in this process, alone.
	Store func(context.Context) StoreState
	// Registry takes the metrics; nil: one that only this server has.
	Registry *prometheus.Registry
	// Trace begins a span of a request, which the function that it returns ends; nil: nothing is traced.
	Trace func(r *http.Request, route, namespace string) (end func(status int))
	Log   *slog.Logger
	// Audit gets what operators change, and who they are; nil: nothing does.
	Audit *slog.Logger
}

// Server answers the requests of the page service. All methods may be called at once.
type Server struct {
	source  atomic.Pointer[Source]
	limits  Limits
	token   bearer.Token
	probe   func() error
	health  func() error
	times   pageservice.Options
	clock   func() time.Duration // see host.SinceBoot
	store   func(context.Context) StoreState
	log     *slog.Logger
	audit   *slog.Logger
	pace    logpace.Pace // of what clients can repeat
	routes  routes
	calls   calls
	hosts   []string // in lower case
	slots   *budget  // of requests that are being executed
	large   *budget  // of the bytes of large bodies
	writes  writes
	disk    disk
	stops   *stops
	hold    holdback
	leader  leaderReady
	stats   *stats
	metrics *metrics
	scrape  http.Handler
	trace   func(r *http.Request, route, namespace string) (end func(status int))
}

// New returns a server of an index, which remains the caller's. nil: there is none until Switch.
func New(x *index.Index, o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Audit == nil {
		o.Audit = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	s := &Server{
		limits: o.Limits.WithDefaults(), token: bearer.NewToken(o.Token),
		probe: o.Probe, health: o.Health, times: o.Times, clock: host.SinceBoot, store: o.Store, log: o.Log, audit: o.Audit, routes: newRoutes(), trace: o.Trace,
	}
	for _, host := range o.Hosts {
		s.hosts = append(s.hosts, strings.ToLower(strings.TrimSuffix(host, ".")))
	}
	s.slots = newBudget(int64(s.limits.Requests))
	s.large = newBudget(s.limits.LargeBytes)
	s.leader.one = make(chan struct{}, 1)
	s.stops = newStops(func() time.Duration { return s.clock() }, s.times)
	s.stats = &stats{query: s.stat, one: make(chan struct{}, 1)}
	s.metrics = newMetrics(o.Registry, s.stats)
	s.scrape = scrapeHandler(o.Registry)
	s.Switch(Source{Index: x})
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
	if !bearer.Allows(s.token, r) {
		refuse(w, refusal{http.StatusUnauthorized, "the token is missing or wrong"})
		return
	}
	if r.URL.Path == "/metrics" {
		s.scrape.ServeHTTP(w, r)
		return
	}
	if answer, refused := s.fromWebPage(r); refused {
		refuseRest(w, r, answer)
		return
	}
	s.route(w, r, bound)
}

// route answers a request that may be made.
func (s *Server) route(w http.ResponseWriter, r *http.Request, bound string) {
	if s.admin(w, r, bound) {
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
		s.answer(w, r, found, place{bound, namespace, rank})
	}
}

// place is what a request's address says.
type place struct {
	bound     string // the namespace that the listener is bound to
	namespace string
	rank      string // as the path has it
}

// answer reads and executes a request, answers it, and counts it.
func (s *Server) answer(w http.ResponseWriter, r *http.Request, to *route, at place) {
	begin := time.Now()
	end := func(int) {}
	if s.trace != nil {
		end = s.trace(r, to.name, at.namespace)
	}
	status := s.take(w, r, to, at)
	end(status)
	took := time.Since(begin)
	if isForwarded(r) {
		s.metrics.countForwarded(to, status) // the other host counts it for its engine
	} else {
		s.metrics.count(at.namespace, to, status, took)
	}
	if s.log.Enabled(r.Context(), slog.LevelDebug) {
		s.log.Debug("request", "route", to.name, "namespace", at.namespace, "status", status, "took", took, "from", r.RemoteAddr)
	}
}

// take reads the body, and executes the request if a slot is free. It takes the slot
// after the body, so that clients that are slow to send do not block others.
func (s *Server) take(w http.ResponseWriter, r *http.Request, to *route, at place) (status int) {
	c := s.calls.get(s, at.namespace)
	defer s.calls.put(c)
	if to.ranked {
		var ok bool
		if c.pathRank, ok = parseRank(at.rank); !ok {
			refuseRank(w, at.rank)
			return http.StatusUnprocessableEntity
		}
	}
	from := clientOf(r)
	leave, pace, err := s.enter(r, from)
	if err == nil {
		defer leave()
		err = c.read(w, r, pace)
	}
	if err != nil {
		answer := s.translate(err)
		refuseRest(w, r, answer)
		return answer.status
	}
	if !s.slots.take(from, 1) {
		refuse(w, refusal{http.StatusServiceUnavailable, "too many requests at once"})
		return http.StatusServiceUnavailable
	}
	source, asked := s.source.Load(), s.clock()
	var leader Answer
	if source.Leader != nil && !isForwarded(r) {
		leader, err = s.ask(r, source, to, at.bound, c, func() error {
			asked = s.clock()
			return s.refuses(to)
		})
	} else if err = s.refuses(to); err == nil {
		err = s.execute(r, source, to, c)
	}
	s.slots.give(from, 1) // before the answer is sent: a client may be slow to read it
	c.shed()
	if len(c.out) > smallBody && r.ContentLength >= 0 && r.ContentLength <= smallBody && err == nil {
		// Such an answer counts as a large body; one to a large body is counted with it.
		size := min(int64(cap(c.out)), s.limits.LargeBytes)
		if !s.large.take(from, size) {
			c.out = nil
			err = refusal{http.StatusServiceUnavailable, "too many large requests at once"}
		} else {
			defer s.large.give(from, size)
		}
	}
	if err == nil {
		err = errors.Join(source.check(), s.old(to, asked))
	}
	switch {
	case err != nil:
		answer := s.translate(err)
		refuse(w, answer)
		return answer.status
	case leader.Status != 0:
		if to.proves && leader.Status/100 == 2 {
			s.metrics.know(at.namespace)
		}
		relay(w, Answer{leader.Status, c.out})
		return leader.Status
	case len(c.out) == 0:
		w.WriteHeader(http.StatusNoContent)
		return http.StatusNoContent
	}
	send(w, http.StatusOK, c.out)
	return http.StatusOK
}

// enter waits until there is memory for a large body, of the size that its head says, and
// makes such a body arrive at some pace.
func (s *Server) enter(r *http.Request, from client) (leave func(), p pace, err error) {
	size := r.ContentLength
	if size < 0 {
		size = s.limits.BodyBytes // the head does not say
	}
	if size <= smallBody || size > s.limits.BodyBytes { // the latter is not read
		return func() {}, pace{}, nil
	}
	size = min(size, s.limits.LargeBytes)
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Work)
	defer cancel()
	if s.large.await(ctx, from, size) != nil {
		return nil, pace{}, refusal{http.StatusServiceUnavailable, "too many large requests at once"}
	}
	p = pace{begin: time.Now(), grace: s.limits.Grace, most: s.limits.Body}
	return func() { s.large.give(from, size) }, p, nil
}

// ask has the leader execute a request, and keeps its answer in c.out.
func (s *Server) ask(r *http.Request, source *Source, to *route, bound string, c *call, sending func() error) (a Answer, err error) {
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Work)
	defer cancel()
	a, err = s.forward(ctx, r, source, Forwarded{Bound: bound, Body: c.body, Again: !to.once, Sending: sending})
	c.out = a.Body
	return a, err
}

// execute parses the body and does what it says.
func (s *Server) execute(r *http.Request, source *Source, to *route, c *call) (err error) {
	if c.index, err = source.index(); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(r.Context(), s.limits.Work)
	defer cancel()
	c.ctx = ctx
	if !to.noBody {
		if err := c.parse(to.form); err != nil {
			return err
		}
	}
	return to.do(c)
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
	case errors.Is(err, pageservice.ErrFull):
		return refusal{http.StatusInsufficientStorage, err.Error()}
	case errors.Is(err, pageservice.ErrClosed), errors.Is(err, pageservice.ErrDemoted): // another host leads, or the server stops
		return refusal{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, pageservice.ErrUnavailable):
		s.writes.failed(s.log, err)
		return refusal{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return refusal{http.StatusServiceUnavailable, "the page index did not answer in time"}
	}
	s.log.Error("page index failed", "err", err)
	return refusal{http.StatusInternalServerError, err.Error()}
}
