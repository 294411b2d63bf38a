package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/fs/fuseserver"
)

// mountMetrics exports what the mount is asked for.
type mountMetrics struct {
	mount        *fuseserver.Mount
	took, failed *prometheus.Desc
}

func newMountMetrics(mount *fuseserver.Mount) *mountMetrics {
	const unseen = " What the kernel answers by itself is not in it: reads and writes in passthrough, and names and attributes that it has cached."
	return &mountMetrics{
		mount:  mount,
		took:   prometheus.NewDesc("kv3fs_mount_operation_seconds", "Time of requests of the mount, by operation."+unseen, []string{"operation"}, nil),
		failed: prometheus.NewDesc("kv3fs_mount_operations_failed_total", "Requests of the mount that were answered with an error. A lookup that ends with ENOENT is no fault: something asked whether the name is there.", []string{"operation", "errno"}, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *mountMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.took
	out <- m.failed
}

// Collect implements prometheus.Collector.
func (m *mountMetrics) Collect(out chan<- prometheus.Metric) {
	for _, o := range m.mount.Operations() {
		out <- histogramMetric(m.took, o.Took, o.Name)
		for _, f := range o.Failed {
			if f.Requests > 0 {
				out <- prometheus.MustNewConstMetric(m.failed, prometheus.CounterValue, float64(f.Requests), o.Name, errnoName(f.Errno))
			}
		}
	}
}
