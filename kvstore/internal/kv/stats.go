package kv

import (
	"errors"
	"sync/atomic"
)

// Stats is what a store has counted since it was opened. See kvstore.Stats.
type Stats struct {
	Store string // as in a chain's name: Cache, Ds3fs ...

	LookedUp int64
	Found    int64

	LoadedShards  int64
	LoadedBytes   int64
	MissedShards  int64 // ErrMiss, damage included
	FailedLoads   int64 // shards, with any other error
	SavedShards   int64
	SavedBytes    int64
	FailedSaves   int64
	DroppedBlocks int64 // begun and never completed, or lost on their way down the chain

	CorruptBlocks     int64
	QuarantinedBlocks int64
	UnverifiedShards  int64 // loaded though no checksum was recorded
	EvictedBlocks     int64

	// Of a store that is near, in front of one that is far.
	PassedBytes  int64 // of LoadedBytes: those that came from the next store
	FilledBlocks int64 // that came from the next store and were kept
	UnsentBlocks int64 // that wait for the next store now

	DeviceCopies    DeviceCopies
	DeviceTransfers DeviceTransfers

	Blocks        int64 // held now, -1 where only the storage knows
	CapacityBytes int64 // 0: unbounded

	Timing Timing

	Next *Stats // the rest of the chain
}

// Timing is what package meter adds to a store's Stats.
type Timing struct {
	Lookup               Latency
	LoadBatch, LoadShard Latency
	SaveBatch, SaveShard Latency

	WaitingBatches                int64 // calls of Load and Save that have not returned
	LoadingBatches, LoadingShards int64 // begun and not settled
	SavingBatches, SavingShards   int64
}

// Counters is what a store counts with. The zero value is ready, and any number of
// goroutines may use it.
type Counters struct {
	LookedUp, Found                      atomic.Int64
	LoadedShards, LoadedBytes            atomic.Int64
	MissedShards, FailedLoads            atomic.Int64
	SavedShards, SavedBytes, FailedSaves atomic.Int64
	DroppedBlocks                        atomic.Int64
	CorruptBlocks, QuarantinedBlocks     atomic.Int64
	UnverifiedShards, EvictedBlocks      atomic.Int64

	Device DeviceCounters
}

// DeviceCopies is what a store has counted of its copies between the memory of a device and
// the host's.
type DeviceCopies struct {
	Copies    int64 // that have succeeded
	Bytes     int64 // of these
	Failed    int64
	Abandoned int64 // of which it is not known whether they have ended
}

// DeviceTransfers is what a store has counted of transfers between the memory of a device and
// files.
type DeviceTransfers struct {
	DirectBytes    int64 // past the host's memory
	RefusedBuffers int64 // of the device, whose memory does not pass the host's by
	Buffered       int64 // through the page cache, which the file system does not let be bypassed
}

// DeviceCounters counts copies. The zero value is ready, and any number of goroutines may use
// it.
type DeviceCounters struct {
	copies, bytes, failed, abandoned atomic.Int64
}

// Count counts a copy that was begun.
func (c *DeviceCounters) Count(sizeBytes int, err error) {
	switch {
	case err == nil:
		c.copies.Add(1)
		c.bytes.Add(int64(sizeBytes))
	case errors.Is(err, ErrAbandoned):
		c.abandoned.Add(1)
	default:
		c.failed.Add(1)
	}
}

// Copies returns what was counted so far.
func (c *DeviceCounters) Copies() DeviceCopies {
	return DeviceCopies{c.copies.Load(), c.bytes.Load(), c.failed.Load(), c.abandoned.Load()}
}

// Stats returns what was counted so far, for a store of that name. The store fills in
// Blocks and CapacityBytes.
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
		DeviceCopies: c.Device.Copies(),
		Blocks:       -1,
	}
}
