package daemon

import (
	"cmp"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
)

// ringMetrics exports what the rings of a daemon move, for the page service's /metrics.
type ringMetrics struct {
	rings    *ringserver.Server
	requests *prometheus.Desc
	failed   *prometheus.Desc
	bytes    *prometheus.Desc
}

func newRingMetrics(rings *ringserver.Server) *ringMetrics {
	const byDirectory = " The directory is the first two of the file's path on the mount; \"other\" is for requests without a file, and for all directories after the first 32."
	labels := []string{"directory", "direction"}
	return &ringMetrics{
		rings: rings,
		requests: prometheus.NewDesc("kv3fs_ring_request_seconds",
			"Time of requests of rings from when the daemon took them to their completion. For engines with pages, reads are their loads and writes their saves, without what the engine itself does."+byDirectory, labels, nil),
		failed: prometheus.NewDesc("kv3fs_ring_requests_failed_total",
			"Requests of rings that failed, by errno. vLLM takes a failed load for a good one: watch direction=\"read\"."+byDirectory, append(labels, "errno"), nil),
		bytes: prometheus.NewDesc("kv3fs_ring_bytes_total", "Bytes that rings have moved."+byDirectory, labels, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *ringMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.requests
	out <- m.failed
	out <- m.bytes
}

// Collect implements prometheus.Collector.
func (m *ringMetrics) Collect(out chan<- prometheus.Metric) {
	for _, t := range m.rings.Traffic() {
		directory := cmp.Or(t.Directory, "other")
		m.collect(out, directory, "read", t.Reads)
		m.collect(out, directory, "write", t.Writes)
	}
}

func (m *ringMetrics) collect(out chan<- prometheus.Metric, directory, direction string, t ringserver.Moved) {
	buckets := map[float64]uint64{}
	var count uint64
	bounds := ringserver.TrafficBounds()
	for i, n := range t.Within {
		count += uint64(n)
		if i < len(bounds) {
			buckets[bounds[i].Seconds()] = count
		}
	}
	out <- prometheus.MustNewConstHistogram(m.requests, count, t.Took.Seconds(), buckets, directory, direction)
	out <- prometheus.MustNewConstMetric(m.bytes, prometheus.CounterValue, float64(t.Bytes), directory, direction)
	for _, f := range t.Failed {
		name := "other"
		if f.Errno != 0 {
			name = unix.ErrnoName(f.Errno)
		}
		out <- prometheus.MustNewConstMetric(m.failed, prometheus.CounterValue, float64(f.Requests), directory, direction, name)
	}
}
