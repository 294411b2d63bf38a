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
)

// Options of New. The zero value is good.
type Options struct {
	Limits Limits
	// Token is what clients must know. Empty: anybody may ask.
	Token string
	// Probe tells whether the disk under the book takes writes; nil: not looked at.
	Probe func() error
	// Registry takes the metrics; nil: one of its own.
	Registry *prometheus.Registry
	Log      *slog.Logger
}

// Door answers the page service's requests. It may be used by many at once.
type Door struct {
	book    pageservice.Book
	limits  Limits
	token   token
	probe   func() error
	log     *slog.Logger
	routes  routes
	calls   calls
	slots   chan struct{}       // one per request being executed
	large   *semaphore.Weighted // the bytes of large bodies
	writes  writes
	disk    disk
	stats   *stats
	metrics *metrics
	scrape  http.Handler
}

// New makes a door to a book, which remains the caller's.
func New(book pageservice.Book, o Options) *Door {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	d := &Door{
		book: book, limits: o.Limits.WithDefaults(), token: newToken(o.Token),
		probe: o.Probe, log: o.Log, routes: newRoutes(),
	}
	d.slots = make(chan struct{}, d.limits.Requests)
	d.large = semaphore.NewWeighted(d.limits.LargeBytes)
	d.stats = newStats(book)
	d.metrics = newMetrics(o.Registry, d.stats)
	d.scrape = scrapeHandler(o.Registry)
	return d
}

// Handler answers on a listener that is bound to a namespace; "" is the default one,
// from which others are reached by the prefix /ns/NAME.
func (d *Door) Handler(namespace string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { d.serve(w, r, namespace) })
}

func (d *Door) serve(w http.ResponseWriter, r *http.Request, bound string) {
	switch r.URL.Path {
	case "/healthz":
		d.healthz(w)
		return
	case "/readyz":
		d.readyz(w, r)
		return
	}
	if !allows(d.token, r) {
		refuse(w, refusal{http.StatusUnauthorized, "the token is missing or wrong"})
		return
	}
	if r.URL.Path == "/metrics" {
		d.scrape.ServeHTTP(w, r)
		return
	}
	if d.admin(w, r) {
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
	found, rank := d.routes.find(path)
	switch {
	case found == nil:
		refuse(w, refusal{http.StatusNotFound, "Not Found"})
	case r.Method != http.MethodPost:
		refuse(w, refusal{http.StatusMethodNotAllowed, "Method Not Allowed"})
	default:
		d.answer(w, r, found, namespace, rank)
	}
}

// answer takes a request in, executes it, and counts it.
func (d *Door) answer(w http.ResponseWriter, r *http.Request, to *route, namespace, rank string) {
	begin := time.Now()
	status := d.take(w, r, to, namespace, rank)
	took := time.Since(begin)
	d.metrics.count(namespace, to, status, took)
	if d.log.Enabled(r.Context(), slog.LevelDebug) {
		d.log.Debug("request", "route", to.name, "namespace", namespace, "status", status, "took", took, "from", r.RemoteAddr)
	}
}

// take reads the body, and executes the request if there is room for one more. The
// slot comes after the body, so that clients that are slow to send take nobody's.
func (d *Door) take(w http.ResponseWriter, r *http.Request, to *route, namespace, rank string) (status int) {
	c := d.calls.get(d, namespace)
	defer d.calls.put(c)
	if to.ranked {
		var ok bool
		if c.pathRank, ok = parseRank(rank); !ok {
			refuseRank(w, rank)
			return http.StatusUnprocessableEntity
		}
	}
	leave, err := d.enter(r)
	if err == nil {
		defer leave()
		err = c.read(w, r)
	}
	if err != nil {
		answer := d.translate(err)
		refuseRest(w, r, answer)
		return answer.status
	}
	select {
	case d.slots <- struct{}{}:
		defer func() { <-d.slots }()
		return d.execute(w, r, to, c)
	default:
		refuse(w, refusal{http.StatusServiceUnavailable, "too many requests at once"})
		return http.StatusServiceUnavailable
	}
}

// enter waits until there is memory for a large body, as large as its head says.
func (d *Door) enter(r *http.Request) (leave func(), err error) {
	size := r.ContentLength
	if size < 0 {
		size = d.limits.BodyBytes // it does not say
	}
	if size <= smallBody || size > d.limits.BodyBytes { // the latter is not read
		return func() {}, nil
	}
	size = min(size, d.limits.LargeBytes)
	ctx, cancel := context.WithTimeout(r.Context(), d.limits.Work)
	defer cancel()
	if d.large.Acquire(ctx, size) != nil {
		return nil, refusal{http.StatusServiceUnavailable, "too many large requests at once"}
	}
	return func() { d.large.Release(size) }, nil
}

func (d *Door) execute(w http.ResponseWriter, r *http.Request, to *route, c *call) (status int) {
	ctx, cancel := context.WithTimeout(r.Context(), d.limits.Work)
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
		answer := d.translate(err)
		refuse(w, answer)
		return answer.status
	case len(c.out) == 0:
		w.WriteHeader(http.StatusNoContent)
		return http.StatusNoContent
	}
	send(w, http.StatusOK, c.out)
	return http.StatusOK
}

// translate says in HTTP what went wrong.
func (d *Door) translate(err error) refusal {
	var known refusal
	switch {
	case errors.As(err, &known):
		return known
	case errors.Is(err, errMalformed):
		return refusal{http.StatusInternalServerError, err.Error()}
	case errors.Is(err, pageservice.ErrInvalid):
		return refusal{http.StatusBadRequest, err.Error()}
	case errors.Is(err, pageservice.ErrUnavailable), errors.Is(err, pageservice.ErrClosed):
		d.writes.failed(d.log, err)
		return refusal{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return refusal{http.StatusServiceUnavailable, "the page store did not answer in time"}
	}
	d.log.Error("the page store failed", "err", err)
	return refusal{http.StatusInternalServerError, err.Error()}
}
