package kvstore

import (
	"maps"
	"slices"

	"github.com/prometheus/client_golang/prometheus"
)

// NewCollector returns a Prometheus collector of the store's [Stats]. All metrics begin
// with kv3fs_kvstore_ and have the label store, which names the store of the chain,
// besides the labels given here. Several stores of one process need different labels.
func NewCollector(s *Store, labels prometheus.Labels) prometheus.Collector {
	c := &collector{stats: s.Stats, labels: maps.Clone(labels)}
	c.counters = []metric{
		c.counter("keys_looked_up_total", "Keys that lookups were asked about.", func(s Stats) int64 { return s.LookedUp }),
		c.counter("keys_found_total", "Keys that lookups found. Divided by kv3fs_kvstore_keys_looked_up_total it is the hit ratio.", func(s Stats) int64 { return s.Found }),
		c.counter("loaded_shards_total", "Shards that were loaded.", func(s Stats) int64 { return s.LoadedShards }),
		c.counter("loaded_bytes_total", "Bytes that were loaded.", func(s Stats) int64 { return s.LoadedBytes }),
		c.counter("missed_shards_total", "Shards of loads whose block was gone or damaged. The engine computed them. Many of them after hits in lookups mean that blocks are evicted between the two: the store is too small.", func(s Stats) int64 { return s.MissedShards }),
		c.counter("failed_load_shards_total", "Shards of loads that failed for another reason than a miss: timeouts and errors of the storage. Should not rise.", func(s Stats) int64 { return s.FailedLoads }),
		c.counter("saved_shards_total", "Shards that were saved.", func(s Stats) int64 { return s.SavedShards }),
		c.counter("saved_bytes_total", "Bytes that were saved.", func(s Stats) int64 { return s.SavedBytes }),
		c.counter("failed_save_shards_total", "Shards that could not be saved: a full store, timeouts and errors of the storage. Their blocks are computed again.", func(s Stats) int64 { return s.FailedSaves }),
		c.counter("dropped_blocks_total", "Blocks that were lost after their save had succeeded, or whose shards never came. A cache whose next store is too slow drops blocks.", func(s Stats) int64 { return s.DroppedBlocks }),
		c.counter("corrupt_blocks_total", "Blocks that were found damaged, and missed. Look at the disk.", func(s Stats) int64 { return s.CorruptBlocks }),
		c.counter("quarantined_blocks_total", "Damaged blocks that were put aside for inspection.", func(s Stats) int64 { return s.QuarantinedBlocks }),
		c.counter("unverified_shards_total", "Shards that were loaded though no checksum was recorded, as UCM's own blocks have none. Damage in them is not noticed.", func(s Stats) int64 { return s.UnverifiedShards }),
		c.counter("evicted_blocks_total", "Blocks that were evicted to make space for others. The rate against that of saves tells how long a block lives.", func(s Stats) int64 { return s.EvictedBlocks }),
		c.counter("passed_bytes_total", "Of the loaded bytes of Segment in front of another store, those that came from that store.", func(s Stats) int64 { return s.PassedBytes }),
		c.counter("filled_blocks_total", "Blocks that came from the next store and were kept on the host's own disk.", func(s Stats) int64 { return s.FilledBlocks }),
		c.counter("device_copies_total", "Copies between the memory of a device and the host's that have succeeded.", func(s Stats) int64 { return s.DeviceCopies }),
		c.counter("device_copied_bytes_total", "Bytes of these copies.", func(s Stats) int64 { return s.DeviceBytes }),
		c.counter("failed_device_copies_total", "Copies to or from a device that failed. Should not rise.", func(s Stats) int64 { return s.FailedDeviceCopies }),
		c.counter("abandoned_device_copies_total", "Copies to or from a device that did not end in time. Their memory is not used again until they have. Should not rise: the device hangs.", func(s Stats) int64 { return s.AbandonedDeviceCopies }),
		c.counter("direct_transfer_bytes_total", "Bytes that moved between a device and files without a copy in host memory, as with GPUDirect Storage.", func(s Stats) int64 { return s.DirectBytes }),
		c.counter("refused_device_buffers_total", "Buffers of a device that direct transfers were refused for; their blocks are copied through host memory. See the log for the reason, such as too little BAR1 space.", func(s Stats) int64 { return s.RefusedDeviceBuffers }),
		c.counter("buffered_transfers_total", "Transfers between a device and files that used the page cache because the file system refused O_DIRECT. Direct I/O is not in use there.", func(s Stats) int64 { return s.BufferedTransfers }),
	}
	c.gauges = []metric{
		c.gauge("blocks", "Blocks held now. Absent where only the storage knows.", func(s Stats) int64 { return s.Blocks }),
		c.gauge("capacity_bytes", "Bytes that the store may take; 0 means no bound.", func(s Stats) int64 { return s.CapacityBytes }),
		c.gauge("unsent_blocks", "Blocks on the host's own disk that the next store does not have yet. If it does not fall, the next store is slow, full or does not answer.", func(s Stats) int64 { return s.UnsentBlocks }),
		c.gauge("waiting_batches", "Loads and saves that wait for the store to accept them. Above 0 for long, the storage is too slow for the engine.", func(s Stats) int64 { return s.WaitingBatches }),
		c.gauge("loading_batches", "Loads in flight.", func(s Stats) int64 { return s.LoadingBatches }),
		c.gauge("loading_shards", "Shards of loads in flight.", func(s Stats) int64 { return s.LoadingShards }),
		c.gauge("saving_batches", "Saves in flight. Behind a cache these are blocks on their way to the storage.", func(s Stats) int64 { return s.SavingBatches }),
		c.gauge("saving_shards", "Shards of saves in flight.", func(s Stats) int64 { return s.SavingShards }),
	}
	c.latencies = []latencyMetric{
		{c.desc("lookup_seconds", "Time that a lookup takes, of one key or many."), func(s Stats) Latency { return s.Lookup }},
		{c.desc("load_batch_seconds", "Time from the call of Load until the last shard of its batch has landed: what an engine that loads whole prompts waits for."), func(s Stats) Latency { return s.LoadBatch }},
		{c.desc("load_shard_seconds", "Time from the call of Load until a shard has landed. Queueing behind the shards of the same batch counts."), func(s Stats) Latency { return s.LoadShard }},
		{c.desc("save_batch_seconds", "Time from the call of Save until the last shard of its batch is taken, and its memory is free again."), func(s Stats) Latency { return s.SaveBatch }},
		{c.desc("save_shard_seconds", "Time from the call of Save until a shard is taken."), func(s Stats) Latency { return s.SaveShard }},
	}
	return c
}

// collector reads all metrics from one Stats, so that they belong together.
type collector struct {
	stats            func() Stats
	labels           prometheus.Labels
	counters, gauges []metric
	latencies        []latencyMetric
}

type metric struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(Stats) int64
}

type latencyMetric struct {
	desc  *prometheus.Desc
	value func(Stats) Latency
}

func (c *collector) desc(name, help string) *prometheus.Desc {
	return prometheus.NewDesc("kv3fs_kvstore_"+name, help, []string{"store"}, c.labels)
}

func (c *collector) counter(name, help string, value func(Stats) int64) metric {
	return metric{c.desc(name, help), prometheus.CounterValue, value}
}

func (c *collector) gauge(name, help string, value func(Stats) int64) metric {
	return metric{c.desc(name, help), prometheus.GaugeValue, value}
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, m := range slices.Concat(c.counters, c.gauges) {
		to <- m.desc
	}
	for _, m := range c.latencies {
		to <- m.desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	stats := c.stats()
	for s := &stats; s != nil; s = s.Next {
		for _, m := range slices.Concat(c.counters, c.gauges) {
			if value := m.value(*s); value >= 0 { // -1: not known
				to <- prometheus.MustNewConstMetric(m.desc, m.kind, float64(value), s.Store)
			}
		}
		for _, m := range c.latencies {
			l := m.value(*s)
			cumulative, buckets := uint64(0), map[float64]uint64{}
			for i, n := range l.Buckets[:LatencyBuckets-1] {
				cumulative += uint64(n)
				buckets[LatencyBound(i).Seconds()] = cumulative
			}
			to <- prometheus.MustNewConstHistogram(m.desc, uint64(l.Count), l.Sum.Seconds(), buckets, s.Store)
		}
	}
}
