package kvstore

import (
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Stats is what a store has counted since it was opened. Counts never fall; Blocks,
// CapacityBytes and the queue depths are of this moment.
type Stats struct {
	Store string `json:"store"` // as in a chain's name: Cache, Ds3fs ...

	LookedUp int64 `json:"keys_looked_up"`
	Found    int64 `json:"keys_found"`

	LoadedShards  int64 `json:"shards_loaded"`
	LoadedBytes   int64 `json:"bytes_loaded"`
	MissedShards  int64 `json:"shards_missed"`      // ErrMiss, damage included
	FailedLoads   int64 `json:"shards_load_failed"` // any other error
	SavedShards   int64 `json:"shards_saved"`
	SavedBytes    int64 `json:"bytes_saved"`
	FailedSaves   int64 `json:"shards_save_failed"`
	DroppedBlocks int64 `json:"blocks_dropped"` // begun and never completed, or lost on their way down the chain

	CorruptBlocks     int64 `json:"blocks_corrupt"`
	QuarantinedBlocks int64 `json:"blocks_quarantined"`
	UnverifiedShards  int64 `json:"shards_unverified"` // loaded though no checksum was recorded
	EvictedBlocks     int64 `json:"blocks_evicted"`

	// Of Segment in front of another store.
	PassedBytes  int64 `json:"bytes_loaded_from_next"` // of LoadedBytes: those that came from the next store
	FilledBlocks int64 `json:"blocks_filled"`          // that came from the next store and were kept
	UnsentBlocks int64 `json:"blocks_unsent"`          // that wait for the next store now

	// Copies between the memory of a device and the host's, of Cache and Gds. Direct
	// transfers between a device and a file are none.
	DeviceCopies          int64 `json:"device_copies"` // that have succeeded
	DeviceBytes           int64 `json:"device_bytes"`  // of these
	FailedDeviceCopies    int64 `json:"device_copies_failed"`
	AbandonedDeviceCopies int64 `json:"device_copies_abandoned"` // the device did not say in time that they have ended

	// Transfers between the memory of a device and files, of Gds.
	DirectBytes          int64 `json:"device_bytes_direct"`       // that did not pass through host memory
	RefusedDeviceBuffers int64 `json:"device_buffers_refused"`    // whose memory cuFile does not take, so that it is copied
	BufferedTransfers    int64 `json:"device_transfers_buffered"` // through the page cache, as the file system refused O_DIRECT

	Blocks        int64 `json:"blocks"`         // held now, -1 where only the storage knows
	CapacityBytes int64 `json:"capacity_bytes"` // 0: unbounded

	// Latencies. Lookup is that of Lookup, LookupPrefix and Contains; the others run
	// from the call of Load or Save: those of batches until the last shard is settled,
	// those of shards until each is.
	Lookup    Latency `json:"lookup_latency"`
	LoadBatch Latency `json:"load_batch_latency"`
	LoadShard Latency `json:"load_shard_latency"`
	SaveBatch Latency `json:"save_batch_latency"`
	SaveShard Latency `json:"save_shard_latency"`

	// Queue depths: calls of Load and Save that wait for the store to take their batch,
	// and batches and shards that were taken and are not settled yet.
	WaitingBatches int64 `json:"batches_waiting"`
	LoadingBatches int64 `json:"batches_loading"`
	LoadingShards  int64 `json:"shards_loading"`
	SavingBatches  int64 `json:"batches_saving"`
	SavingShards   int64 `json:"shards_saving"`

	Next *Stats `json:"next,omitempty"` // the rest of the chain
}

// LatencyBuckets is the number of buckets of a [Latency]: 22.
const LatencyBuckets = kv.LatencyBuckets

// LatencyBound returns the upper bound of the i-th bucket of a [Latency]: 32 µs for the
// first, and twice as much for each further one, up to 33.6 s. The last has no bound: for
// it LatencyBound returns the longest duration.
func LatencyBound(i int) time.Duration { return kv.LatencyBound(i) }

// Latency is a histogram of durations.
type Latency struct {
	Count   int64                 `json:"count"`
	Sum     time.Duration         `json:"sum_ns"`
	Buckets [LatencyBuckets]int64 `json:"buckets"` // how many in each; not cumulative
}

// Mean returns the average, 0 where nothing was counted.
func (l Latency) Mean() time.Duration {
	if l.Count == 0 {
		return 0
	}
	return l.Sum / time.Duration(l.Count)
}

// Quantile returns a duration that the given share of all durations does not exceed: the
// bound of their bucket, so at most twice the true one. The longest that it returns is
// the last bound. It is 0 where nothing was counted.
func (l Latency) Quantile(share float64) time.Duration {
	if l.Count == 0 {
		return 0
	}
	below := int64(0)
	for i, n := range l.Buckets[:LatencyBuckets-1] {
		below += n
		if float64(below) >= share*float64(l.Count) && below > 0 {
			return LatencyBound(i)
		}
	}
	return LatencyBound(LatencyBuckets - 2)
}

func statsOf(s kv.Stats) Stats {
	t := s.Timing
	all := Stats{
		Store:    s.Store,
		LookedUp: s.LookedUp, Found: s.Found,
		LoadedShards: s.LoadedShards, LoadedBytes: s.LoadedBytes,
		MissedShards: s.MissedShards, FailedLoads: s.FailedLoads,
		SavedShards: s.SavedShards, SavedBytes: s.SavedBytes, FailedSaves: s.FailedSaves,
		DroppedBlocks: s.DroppedBlocks,
		CorruptBlocks: s.CorruptBlocks, QuarantinedBlocks: s.QuarantinedBlocks,
		UnverifiedShards: s.UnverifiedShards, EvictedBlocks: s.EvictedBlocks,
		PassedBytes: s.PassedBytes, FilledBlocks: s.FilledBlocks, UnsentBlocks: s.UnsentBlocks,
		DeviceCopies: s.DeviceCopies.Copies, DeviceBytes: s.DeviceCopies.Bytes,
		FailedDeviceCopies: s.DeviceCopies.Failed, AbandonedDeviceCopies: s.DeviceCopies.Abandoned,
		DirectBytes: s.DeviceTransfers.DirectBytes, RefusedDeviceBuffers: s.DeviceTransfers.RefusedBuffers, BufferedTransfers: s.DeviceTransfers.Buffered,
		Blocks: s.Blocks, CapacityBytes: s.CapacityBytes,
		Lookup:    Latency(t.Lookup),
		LoadBatch: Latency(t.LoadBatch), LoadShard: Latency(t.LoadShard),
		SaveBatch: Latency(t.SaveBatch), SaveShard: Latency(t.SaveShard),
		WaitingBatches: t.WaitingBatches,
		LoadingBatches: t.LoadingBatches, LoadingShards: t.LoadingShards,
		SavingBatches: t.SavingBatches, SavingShards: t.SavingShards,
	}
	if s.Next != nil {
		next := statsOf(*s.Next)
		all.Next = &next
	}
	return all
}
