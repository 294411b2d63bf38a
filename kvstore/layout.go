package kvstore

import (
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// Key names a block; package keys makes them.
type Key = keys.Key

// MaxShards is the largest number of shards that a block may have: 488.
const MaxShards = kv.MaxShards

// Layout is the size of blocks and of their shards. All blocks of a store have the same
// layout.
type Layout struct {
	// BlockBytes is the size of a block.
	BlockBytes int64
	// ShardBytes is the size of each of its shards: a layer's part of the block, or the
	// whole block. It divides BlockBytes into at most MaxShards shards.
	ShardBytes int64
}

// Shards returns the number of shards of a block, 0 for a layout without a shard size.
func (l Layout) Shards() int { return kv.Layout(l).Shards() }

// Check returns an error that says what is wrong with a layout.
func (l Layout) Check() error { return kv.Layout(l).Check() }

// Shard is one part of a block and the caller's memory for it: Buf, or a place in the
// memory of a device such as a GPU.
type Shard struct {
	Key   Key
	Index int    // below Layout.Shards; an engine that goes layer by layer makes it the layer
	Buf   []byte // exactly Layout.ShardBytes long, or nil

	// Device is a place with as many bytes in memory of the store's device, or nil. Only
	// chains with Cache in front take it, and Gds: see [Store.Device].
	Device *device.Place
}

// ByBlock cuts bufs[i] into the shards of the block keys[i], one block after the other.
//
// What is longer than a block, or beyond the last key, is not used. Where a buffer is
// missing or too short its shards get what there is of it, and Load and Save refuse the
// batch with a [BatchError]. A layout that Check refuses gives no shards, and Load and
// Save refuse that batch, too.
func (l Layout) ByBlock(keys []Key, bufs [][]byte) []Shard {
	return kv.ByBlock[Shard](kv.Layout(l), keys, bufs)
}

// ByLayer is ByBlock in the order in which an engine wants the shards: the first of
// every block, then the second.
func (l Layout) ByLayer(keys []Key, bufs [][]byte) []Shard {
	return kv.ByLayer[Shard](kv.Layout(l), keys, bufs)
}

// ByBlockOn is ByBlock for memory of a device: the block keys[i] begins at places[i]. An
// engine whose blocks are not in one piece makes its shards itself.
func (l Layout) ByBlockOn(keys []Key, places []device.Place) []Shard {
	return kv.ByBlockOn[Shard](kv.Layout(l), keys, places)
}

// ByLayerOn is ByLayer for memory of a device.
func (l Layout) ByLayerOn(keys []Key, places []device.Place) []Shard {
	return kv.ByLayerOn[Shard](kv.Layout(l), keys, places)
}

// Checksums says how a store uses checksums.
type Checksums string

const (
	// ChecksumsAuto, the default, records a checksum for everything that is saved and
	// checks everything that has one. Layouts of our own always have them. In UCM's
	// layouts, a block without one is a miss unless UCM wrote it.
	ChecksumsAuto Checksums = "auto"
	// ChecksumsRequire makes a block without a checksum a miss.
	ChecksumsRequire Checksums = "require"
	// ChecksumsOff loads without checking, to measure what checking costs.
	ChecksumsOff Checksums = "off"
)
