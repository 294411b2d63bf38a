package csi

import (
	"context"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/kv3fs/kv3fs/internal/csi/volumes"
)

// metrics are what /metrics answers.
type metrics struct {
	volumes   *volumes.Volumes
	registrar *registrar
	calls     *prometheus.CounterVec

	count, recovered, registered *prometheus.Desc
}

func newMetrics(v *volumes.Volumes, r *registrar) *metrics {
	return &metrics{
		volumes: v, registrar: r,
		calls: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "kv3fs_csi_calls_total", Help: "Calls of kubelet, by method and by the gRPC code of the answer.",
		}, []string{"method", "code"}),
		count:      prometheus.NewDesc("kv3fs_csi_volumes", "Volumes of pods on this node. live: the daemon answers; dead: it has ended, and its successor is not there yet; hung: it does not answer; missing: nothing is mounted any more.", []string{"state"}, nil),
		recovered:  prometheus.NewDesc("kv3fs_csi_recoveries_total", "Volumes that were bound to a new mount under their running pods, because the daemon was started again.", nil, nil),
		registered: prometheus.NewDesc("kv3fs_csi_registered", "1 if kubelet has registered the plugin. 0: no pod gets a volume.", nil, nil),
	}
}

// registry has them and those that every process has.
func (m *metrics) registry() *prometheus.Registry {
	r := prometheus.NewRegistry()
	r.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), m, m.calls)
	return r
}

// Describe is of prometheus.Collector.
func (m *metrics) Describe(to chan<- *prometheus.Desc) {
	to <- m.count
	to <- m.recovered
	to <- m.registered
}

// Collect is of prometheus.Collector. It asks each mount, for as long as its patience.
func (m *metrics) Collect(to chan<- prometheus.Metric) {
	count, err := m.volumes.Count(context.Background())
	if err != nil {
		to <- prometheus.NewInvalidMetric(m.count, err)
	} else {
		for _, state := range volumes.States() {
			to <- prometheus.MustNewConstMetric(m.count, prometheus.GaugeValue, float64(count[state]), string(state))
		}
	}
	to <- prometheus.MustNewConstMetric(m.recovered, prometheus.CounterValue, float64(m.volumes.Recovered()))
	registered := 0.0
	if m.registrar.registered.Load() {
		registered = 1
	}
	to <- prometheus.MustNewConstMetric(m.registered, prometheus.GaugeValue, registered)
}
