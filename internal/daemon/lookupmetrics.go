package daemon

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/fs/lookups"
)

// lookupMetrics exports what engines have looked up and found.
type lookupMetrics struct {
	looked       *lookups.Counter
	hits, misses *prometheus.Desc
}

func newLookupMetrics(looked *lookups.Counter) *lookupMetrics {
	labels := []string{"engine", "model"}
	return &lookupMetrics{
		looked: looked,
		hits:   prometheus.NewDesc("kv3fs_lookup_hits_total", "Blocks that engines with a file per block have found and read, by engine and model as the files' names tell. 32 pairs are counted apart, see kv3fs_ring_request_seconds; the engine \"other\" is for the rest.", labels, nil),
		misses: prometheus.NewDesc("kv3fs_lookup_misses_total", "Blocks that such engines have looked up and that were not there. What they compute themselves, or never ask for, does not count.", labels, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *lookupMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.hits
	out <- m.misses
}

// Collect implements prometheus.Collector.
func (m *lookupMetrics) Collect(out chan<- prometheus.Metric) {
	all, _ := m.looked.Counts()
	for _, c := range all {
		engine := cmp.Or(c.Engine, "other")
		out <- prometheus.MustNewConstMetric(m.hits, prometheus.CounterValue, float64(c.Hits), engine, c.Model)
		out <- prometheus.MustNewConstMetric(m.misses, prometheus.CounterValue, float64(c.Misses), engine, c.Model)
	}
}
