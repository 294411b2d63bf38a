package daemon

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/histogram"
)

// histogramMetric returns a histogram as a metric, with its examples as exemplars. Those have only numbers: what users name
// may be longer than an exemplar.
func histogramMetric(desc *prometheus.Desc, c histogram.Count, labels ...string) prometheus.Metric {
	buckets, total := map[float64]uint64{}, uint64(0)
	for i, n := range c.Within {
		total += uint64(n)
		if i < len(c.Bounds) {
			buckets[c.Bounds[i].Seconds()] = total
		}
	}
	m := prometheus.MustNewConstHistogram(desc, total, c.Sum.Seconds(), buckets, labels...)
	var exemplars []prometheus.Exemplar
	for _, e := range c.Examples {
		if e == nil {
			continue
		}
		l := prometheus.Labels{"inode": strconv.FormatUint(e.File, 10)}
		if e.PID != 0 {
			l["pid"] = strconv.Itoa(e.PID)
		}
		exemplars = append(exemplars, prometheus.Exemplar{Value: e.Took.Seconds(), Labels: l, Timestamp: e.At})
	}
	if len(exemplars) == 0 {
		return m
	}
	with, err := prometheus.NewMetricWithExemplars(m, exemplars...)
	if err != nil { // the metric is worth more than its exemplars
		return m
	}
	return with
}
