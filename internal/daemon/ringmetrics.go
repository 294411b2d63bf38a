package daemon

import (
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
	direction := []string{"direction"}
	return &ringMetrics{
		rings: rings,
		requests: prometheus.NewDesc("kv3fs_ring_request_seconds",
			"Time of requests of rings from when the daemon took them to their completion. For engines with pages, reads are their loads and writes their saves, without what the engine itself does.", direction, nil),
		failed: prometheus.NewDesc("kv3fs_ring_requests_failed_total",
			"Requests of rings that failed, by errno. vLLM takes a failed load for a good one: watch direction=\"read\".", append(direction, "errno"), nil),
		bytes: prometheus.NewDesc("kv3fs_ring_bytes_total", "Bytes that rings have moved.", direction, nil),
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
	reads, writes := m.rings.Traffic()
	m.collect(out, "read", reads)
	m.collect(out, "write", writes)
}

func (m *ringMetrics) collect(out chan<- prometheus.Metric, direction string, t ringserver.Traffic) {
	buckets := map[float64]uint64{}
	var count uint64
	bounds := ringserver.TrafficBounds()
	for i, n := range t.Within {
		count += uint64(n)
		if i < len(bounds) {
			buckets[bounds[i].Seconds()] = count
		}
	}
	out <- prometheus.MustNewConstHistogram(m.requests, count, t.Took.Seconds(), buckets, direction)
	out <- prometheus.MustNewConstMetric(m.bytes, prometheus.CounterValue, float64(t.Bytes), direction)
	for _, f := range t.Failed {
		name := "other"
		if f.Errno != 0 {
			name = unix.ErrnoName(f.Errno)
		}
		out <- prometheus.MustNewConstMetric(m.failed, prometheus.CounterValue, float64(f.Requests), direction, name)
	}
}
