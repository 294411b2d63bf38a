package daemon

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/kv3fs/kv3fs/internal/keeper"
)

// keeperMetrics exports what a keeper holds and has done.
type keeperMetrics struct {
	keeper  func() *keeper.Keeper // that is at work now; nil: none
	all     []keeperMetric
	evicted *prometheus.Desc
	unused  *prometheus.Desc
}

type keeperMetric struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(keeper.State) float64
}

func newKeeperMetrics(atWork func() *keeper.Keeper) *keeperMetrics {
	m := &keeperMetrics{
		keeper:  atWork,
		evicted: prometheus.NewDesc("kv3fs_keeper_removed_files_total", "Files that the keeper has removed, by reason. room: the limit was near. ttl: they were too old. abandoned: their writers left them incomplete. operator: kv3fs evict.", []string{"reason"}, nil),
	}
	m.unused = prometheus.NewDesc("kv3fs_keeper_evicted_unused_seconds", "How long files that went for room had not been used. Short: the cache is too small for what is asked of it; kv3fs stat --curve says what more would bring.", nil, nil)
	gauge := func(name, help string, of func(keeper.State) float64) {
		m.all = append(m.all, keeperMetric{prometheus.NewDesc("kv3fs_keeper_"+name, help, nil, nil), prometheus.GaugeValue, of})
	}
	counter := func(name, help string, of func(keeper.State) float64) {
		m.all = append(m.all, keeperMetric{prometheus.NewDesc("kv3fs_keeper_"+name, help, nil, nil), prometheus.CounterValue, of})
	}
	gauge("used_bytes", "What the files of the data directory take.", func(s keeper.State) float64 { return float64(s.UsedBytes) })
	gauge("limit_bytes", "What they may take; 0: no limit but quotas of directories.", func(s keeper.State) float64 { return float64(s.LimitBytes) })
	gauge("reserved_bytes", "Room set aside for writes that are under way.", func(s keeper.State) float64 { return float64(s.ReservedBytes) })
	gauge("files", "Files in the data directory.", func(s keeper.State) float64 { return float64(s.Files) })
	gauge("directories", "Directories in it.", func(s keeper.State) float64 { return float64(s.Directories) })
	gauge("scanned", "1 once everything has been found after a start; until then used_bytes and files still grow.", func(s keeper.State) float64 {
		if s.Scanned {
			return 1
		}
		return 0
	})
	gauge("unreadable_files", "Entries that the last scans could not read: they are not counted.", func(s keeper.State) float64 { return float64(s.UnreadableFiles) })
	gauge("waiting_writers", "Writers that wait for room. More than 0 for long: nothing more may leave; see kv3fs stat.", func(s keeper.State) float64 { return float64(s.WaitingWriters) })
	counter("removed_for_room_bytes_total", "Bytes that were freed because the limit was near.", func(s keeper.State) float64 { return float64(s.EvictedBytes) })
	counter("spared_files_total", "Files that were to go and turned out to be changed, in use or young, each once.", func(s keeper.State) float64 { return float64(s.KeptFiles) })
	counter("waited_writes_total", "Writes that did not find room at once.", func(s keeper.State) float64 { return float64(s.WaitedWrites) })
	counter("refused_writes_total", "Writes that ended with ENOSPC or EDQUOT: engines lose these saves. Pins, open files or the grace period leave too little that may go.", func(s keeper.State) float64 { return float64(s.RefusedWrites) })
	return m
}

// Describe implements prometheus.Collector.
func (m *keeperMetrics) Describe(out chan<- *prometheus.Desc) {
	out <- m.evicted
	out <- m.unused
	for _, one := range m.all {
		out <- one.desc
	}
}

// Collect implements prometheus.Collector. Without a keeper, or while another host keeps the directory, there is nothing.
func (m *keeperMetrics) Collect(out chan<- prometheus.Metric) {
	k := m.keeper()
	if k == nil {
		return
	}
	s := k.State()
	for _, one := range m.all {
		out <- prometheus.MustNewConstMetric(one.desc, one.kind, one.of(s))
	}
	buckets, total := map[float64]uint64{}, uint64(0)
	for i, n := range s.EvictedUnused.Files {
		total += uint64(n)
		if i < len(s.EvictedUnused.BoundsSeconds) {
			buckets[float64(s.EvictedUnused.BoundsSeconds[i])] = total
		}
	}
	out <- prometheus.MustNewConstHistogram(m.unused, total, float64(s.EvictedUnused.SumSeconds), buckets)
	for reason, n := range map[string]int64{"room": s.EvictedFiles, "ttl": s.ExpiredFiles, "abandoned": s.ReapedFiles, "operator": s.RequestedFiles} {
		out <- prometheus.MustNewConstMetric(m.evicted, prometheus.CounterValue, float64(n), reason)
	}
}
