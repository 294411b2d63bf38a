package door

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/pages"
)

// Options of New. The zero value is good.
type Options struct {
	Limits Limits
	// World is how many ranks of vLLM make a key complete. 0: as many as are known.
	World int
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
	book    pages.Book
	limits  Limits
	world   int
	token   token
	probe   func() error
	log     *slog.Logger
	routes  routes
	calls   calls
	slots   chan struct{} // one per request being executed
	writes  writes
	disk    disk
	stats   *stats
	metrics *metrics
	scrape  http.Handler
}

// New makes a door to a book, which remains the caller's.
func New(book pages.Book, o Options) *Door {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	d := &Door{
		book: book, limits: o.Limits.WithDefaults(), world: o.World, token: newToken(o.Token),
		probe: o.Probe, log: o.Log, routes: newRoutes(),
	}
	d.slots = make(chan struct{}, d.limits.Requests)
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

// answer executes a request if there is room for one more.
func (d *Door) answer(w http.ResponseWriter, r *http.Request, to *route, namespace, rank string) {
	begin := time.Now()
	status := http.StatusServiceUnavailable
	select {
	case d.slots <- struct{}{}:
		status = d.execute(w, r, to, namespace, rank)
		<-d.slots
	default:
		refuse(w, refusal{status, "too many requests at once"})
	}
	took := time.Since(begin)
	d.metrics.count(namespace, to, status, took)
	if d.log.Enabled(r.Context(), slog.LevelDebug) {
		d.log.Debug("request", "route", to.name, "namespace", namespace, "status", status, "took", took, "from", r.RemoteAddr)
	}
}

func (d *Door) execute(w http.ResponseWriter, r *http.Request, to *route, namespace, rank string) (status int) {
	ctx, cancel := context.WithTimeout(r.Context(), d.limits.Work)
	defer cancel()
	c := d.calls.get(ctx, d, namespace)
	defer d.calls.put(c)
	if to.ranked {
		var ok bool
		if c.pathRank, ok = parseRank(rank); !ok {
			refuseRank(w, rank)
			return http.StatusUnprocessableEntity
		}
	}
	err := c.read(w, r)
	if err == nil && !to.noBody {
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
	case errors.Is(err, pages.ErrInvalid):
		return refusal{http.StatusBadRequest, err.Error()}
	case errors.Is(err, pages.ErrUnavailable), errors.Is(err, pages.ErrClosed):
		d.writes.failed(d.log, err)
		return refusal{http.StatusServiceUnavailable, err.Error()}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return refusal{http.StatusServiceUnavailable, "the page store did not answer in time"}
	}
	d.log.Error("the page store failed", "err", err)
	return refusal{http.StatusInternalServerError, err.Error()}
}
