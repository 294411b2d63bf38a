package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/fs/integrity"
)

// checksumMetrics exports what the checksums of a daemon have found, for the page service's /metrics.
type checksumMetrics struct {
	sums *integrity.Store
	all  []checksumMetric
}

type checksumMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(integrity.Counters) int64
}

func newChecksumMetrics(sums *integrity.Store) *checksumMetrics {
	m := &checksumMetrics{sums: sums}
	export := func(kind prometheus.ValueType, name, help string, of func(integrity.Counters) int64) {
		m.all = append(m.all, checksumMetric{prometheus.NewDesc("kv3fs_checksums_"+name, help, nil, nil), kind, of})
	}
	add := func(name, help string, of func(integrity.Counters) int64) {
		export(prometheus.CounterValue, name, help, of)
	}
	add("verified_bytes_total", "Bytes that rings have read and compared with their checksums.", func(c integrity.Counters) int64 { return c.VerifiedBytes })
	add("changed_files_total", "Files whose checksums were dropped, because somebody else than the daemon has changed them.", func(c integrity.Counters) int64 { return c.Changed })
	add("damaged_ranges_total", "Times that a ring met stored bytes that have changed without being written. More than 0: check the disk and the memory.", func(c integrity.Counters) int64 { return c.Damaged })
	add("doubtful_ranges_total", "Times that a ring met bytes that are not what was to be written, and were never read as they should be.", func(c integrity.Counters) int64 { return c.Doubtful })
	add("unsure_ranges_total", "Times that a ring met bytes that do not match their checksum and that somebody else may have written: they were served.", func(c integrity.Counters) int64 { return c.Unsure })
	add("renamed_files_total", "Damaged files that were renamed, see docs/integrity.md.", func(c integrity.Counters) int64 { return c.Aside })
	add("forgotten_total", "Times that checksums of a range, or of a file, found no room in memory: they are unknown.", func(c integrity.Counters) int64 { return c.Forgotten })
	export(prometheus.GaugeValue, "unwatched_files", "Files in use of which the kernel does not tell who else changes them: what is written there counts once it was read while nobody had it open for writing. The log has the reason.", func(c integrity.Counters) int64 { return max(c.InUse-c.Watched, 0) })
	return m
}

// Describe implements prometheus.Collector.
func (m *checksumMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, one := range m.all {
		out <- one.desc
	}
}

// Collect implements prometheus.Collector.
func (m *checksumMetrics) Collect(out chan<- prometheus.Metric) {
	if m.sums == nil {
		return
	}
	c := m.sums.Counters()
	for _, one := range m.all {
		out <- prometheus.MustNewConstMetric(one.desc, one.kind, float64(one.of(c)))
	}
}
