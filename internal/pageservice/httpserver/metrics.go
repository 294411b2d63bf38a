package httpserver

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/kv3fs/kv3fs/internal/pageservice/index"
)

const (
	// maxLabels bounds how many namespaces, and how many sets of keys, have labels of
	// their own in metrics; the others share otherLabel.
	maxLabels = 64
	// Labels that cannot be names of namespaces.
	otherLabel   = "(other)"
	defaultLabel = "(default)"
)

// metrics counts requests, each on the host whose engine sent it. A namespace has a label of its own once it is known to
// have a rank, also from before a restart, so that mistyped URLs use up no labels.
type metrics struct {
	requests  *prometheus.CounterVec
	seconds   *prometheus.HistogramVec
	forwarded *prometheus.CounterVec

	mu    sync.RWMutex
	known map[string]bool // namespaces with a label of their own
}

func newMetrics(into *prometheus.Registry, s *stats) *metrics {
	m := &metrics{
		known: map[string]bool{"": true},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kv3fs_pages_requests_total",
			Help: "Requests of engines by status. 503: try again (too many requests, or the disk of the page index is full or broken). 404 for SGLang and 500 for vLLM: a rank that was never initialised. 500 for both: a malformed body.",
		}, []string{"route", "namespace", "code"}),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "kv3fs_pages_request_seconds",
			Help:    "Time from the head of a request to the end of its answer. It includes reading the body, and the disk for every change: initialize, allocate and reserve, confirm_write, delete_keys, clear.",
			Buckets: []float64{25e-6, 50e-6, 100e-6, 200e-6, 350e-6, 500e-6, 1e-3, 2e-3, 5e-3, 10e-3, 25e-3, 50e-3, 100e-3, 250e-3, 500e-3, 1, 2.5, 5, 20},
		}, []string{"route", "namespace"}),
		forwarded: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kv3fs_pages_forwarded_requests_total",
			Help: "Requests that other hosts have forwarded to this one, which kv3fs_pages_requests_total has on those. 421: this host did not lead when they came.",
		}, []string{"route", "code"}),
	}
	into.MustRegister(m.requests, m.seconds, m.forwarded, newStatCollector(s))
	return m
}

// Collectors returns collectors that describe the metrics of a server; they collect nothing.
func Collectors() []prometheus.Collector {
	m := newMetrics(prometheus.NewRegistry(), nil)
	return []prometheus.Collector{m.requests, m.seconds, m.forwarded, newStatCollector(nil)}
}

// knowAll gives the namespaces of an index labels of their own.
func (m *metrics) knowAll(x *index.Index) {
	for s := range x.Ranks() {
		m.know(s.Namespace)
	}
}

// know gives a namespace a label of its own, up to maxLabels.
func (m *metrics) know(namespace string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.known) < maxLabels {
		m.known[namespace] = true
	}
}

func (m *metrics) label(namespace string) string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if !m.known[namespace] {
		return otherLabel
	}
	return label(namespace)
}

func (m *metrics) count(namespace string, to *route, status int, took time.Duration) {
	label := m.label(namespace)
	m.seconds.WithLabelValues(to.name, label).Observe(took.Seconds())
	m.requests.WithLabelValues(to.name, label, strconv.Itoa(status)).Inc()
}

func (m *metrics) countForwarded(to *route, status int) {
	m.forwarded.WithLabelValues(to.name, strconv.Itoa(status)).Inc()
}

// label returns the label of a namespace in metrics.
func label(namespace string) string {
	if namespace == "" {
		return defaultLabel
	}
	return namespace
}

func scrapeHandler(from *prometheus.Registry) http.Handler {
	return promhttp.HandlerFor(from, promhttp.HandlerOpts{MaxRequestsInFlight: 4, Timeout: 10 * time.Second, ErrorHandling: promhttp.ContinueOnError})
}
