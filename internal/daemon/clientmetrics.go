package daemon

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/fs/ringserver"
)

// mostProcesses bounds the processes that metrics show apart: those with the most bytes.
const mostProcesses = 32

// clientMetrics exports which processes have iovs and rings.
type clientMetrics struct {
	rings                         *ringserver.Server
	processes, registrations, all *prometheus.Desc
}

func newClientMetrics(rings *ringserver.Server) *clientMetrics {
	labels := []string{"pid", "process", "uid", "kind"}
	const apart = " The 32 processes with the most bytes are shown apart, the others have the process \"other\"; the pid 0 is for processes in other PID namespaces."
	return &clientMetrics{
		rings:         rings,
		processes:     prometheus.NewDesc("kv3fs_client_processes", "Processes that have iovs or rings.", nil, nil),
		registrations: prometheus.NewDesc("kv3fs_client_registrations", "Iovs and rings of a process."+apart, labels, nil),
		all:           prometheus.NewDesc("kv3fs_client_shared_bytes", "Shared memory of a process's iovs and rings."+apart, labels, nil),
	}
}

// Describe implements prometheus.Collector.
func (m *clientMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.processes
	out <- m.registrations
	out <- m.all
}

// Collect implements prometheus.Collector.
func (m *clientMetrics) Collect(out chan<- prometheus.Metric) {
	all := m.rings.Processes()
	out <- prometheus.MustNewConstMetric(m.processes, prometheus.GaugeValue, float64(len(all)))
	show := func(pid, name, uid string, p ringserver.Process) {
		gauge := func(d *prometheus.Desc, v float64, kind string) {
			out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, pid, name, uid, kind)
		}
		gauge(m.registrations, float64(p.Iovs), "iov")
		gauge(m.registrations, float64(p.Rings), "ring")
		gauge(m.all, float64(p.IovBytes), "iov")
		gauge(m.all, float64(p.RingBytes), "ring")
	}
	for _, p := range all[:min(len(all), mostProcesses)] {
		show(strconv.Itoa(p.PID), p.Name, strconv.FormatUint(uint64(p.UID), 10), p)
	}
	if len(all) > mostProcesses {
		var rest ringserver.Process
		for _, p := range all[mostProcesses:] {
			rest.Iovs += p.Iovs
			rest.Rings += p.Rings
			rest.IovBytes += p.IovBytes
			rest.RingBytes += p.RingBytes
		}
		show("", "other", "", rest)
	}
}
