package kv

import "sync/atomic"

// Stats is what a store has counted since it was opened.
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
	UnverifiedShards  int64 `json:"shards_unverified"` // loaded where nothing recorded a checksum
	EvictedBlocks     int64 `json:"blocks_evicted"`

	Blocks        int64 `json:"blocks"`         // held now, -1 where only the storage knows
	CapacityBytes int64 `json:"capacity_bytes"` // 0: unbounded

	Next *Stats `json:"next,omitempty"` // the rest of the chain
}

// Counters is what a store counts with; the zero value is ready, and any number of
// goroutines may use it.
type Counters struct {
	LookedUp, Found                      atomic.Int64
	LoadedShards, LoadedBytes            atomic.Int64
	MissedShards, FailedLoads            atomic.Int64
	SavedShards, SavedBytes, FailedSaves atomic.Int64
	DroppedBlocks                        atomic.Int64
	CorruptBlocks, QuarantinedBlocks     atomic.Int64
	UnverifiedShards, EvictedBlocks      atomic.Int64
}

// Stats is what was counted so far, for a store of that name. Blocks and
// CapacityBytes are the store's to fill in.
func (c *Counters) Stats(store string) Stats {
	return Stats{
		Store:    store,
		LookedUp: c.LookedUp.Load(), Found: c.Found.Load(),
		LoadedShards: c.LoadedShards.Load(), LoadedBytes: c.LoadedBytes.Load(),
		MissedShards: c.MissedShards.Load(), FailedLoads: c.FailedLoads.Load(),
		SavedShards: c.SavedShards.Load(), SavedBytes: c.SavedBytes.Load(), FailedSaves: c.FailedSaves.Load(),
		DroppedBlocks: c.DroppedBlocks.Load(),
		CorruptBlocks: c.CorruptBlocks.Load(), QuarantinedBlocks: c.QuarantinedBlocks.Load(),
		UnverifiedShards: c.UnverifiedShards.Load(), EvictedBlocks: c.EvictedBlocks.Load(),
		Blocks: -1,
	}
}
