package kv

import (
	"fmt"

	"github.com/kv3fs/kv3fs/kvstore/device"
)

// MaxShards is the largest number of shards that a block may have.
const MaxShards = 488

// Layout is the size of blocks and of their shards. All blocks of a store have the same
// layout.
type Layout struct {
	BlockBytes int64 // of a block
	ShardBytes int64 // of each of its shards: a layer's part of it, or the whole block
}

// Shards returns the number of shards of a block, 0 for a layout without a shard size.
func (l Layout) Shards() int {
	if l.ShardBytes <= 0 {
		return 0
	}
	return int(l.BlockBytes / l.ShardBytes)
}

// Check returns an error that says what is wrong with a layout.
func (l Layout) Check() error {
	switch {
	case l.BlockBytes <= 0:
		return fmt.Errorf("kvstore: BlockBytes (block_size) is %d; it must be positive", l.BlockBytes)
	case l.ShardBytes <= 0:
		return fmt.Errorf("kvstore: ShardBytes (shard_size) is %d; it must be positive", l.ShardBytes)
	case l.BlockBytes%l.ShardBytes != 0:
		return fmt.Errorf("kvstore: BlockBytes (block_size) is %d, which is not a multiple of ShardBytes (shard_size), %d", l.BlockBytes, l.ShardBytes)
	case l.BlockBytes/l.ShardBytes > MaxShards:
		return fmt.Errorf("kvstore: a block of %d bytes (block_size) has %d shards of %d; at most %d are possible",
			l.BlockBytes, l.BlockBytes/l.ShardBytes, l.ShardBytes, MaxShards)
	}
	return nil
}

// Shard is one part of a block and the caller's memory for it: Buf, or a place in the
// memory of a device.
type Shard struct {
	Key    Key
	Index  int           // below Layout.Shards; an engine that goes layer by layer makes it the layer
	Buf    []byte        // exactly Layout.ShardBytes long, or nil
	Device *device.Place // of as many bytes, or nil. Only Cache and Gds take it
}

// CheckShards returns a BatchError that names the first shard that does not fit the
// layout, or is in the memory of a device. A store that needs host memory begins Load and
// Save with it: all but Cache and Gds do.
func (l Layout) CheckShards(shards []Shard) error {
	if err := l.CheckAnyShards(shards); err != nil {
		return err
	}
	for i, s := range shards {
		if s.Device != nil {
			return &BatchError{i, s.Key, "it names memory of a device, which only a chain with Cache in front takes, and Gds with a Device of its own; add Cache, or give a Buf"}
		}
	}
	return nil
}

// CheckAnyShards is CheckShards for stores that also take memory of devices.
func (l Layout) CheckAnyShards(shards []Shard) error {
	if len(shards) == 0 {
		return &BatchError{Shard: -1, Reason: "it has no shards"}
	}
	for i, s := range shards {
		if s.Index < 0 || s.Index >= l.Shards() {
			return &BatchError{i, s.Key, fmt.Sprintf("its index is %d; blocks have %d shards", s.Index, l.Shards())}
		}
		if s.Device != nil {
			if s.Buf != nil {
				return &BatchError{i, s.Key, "it has both a Buf and a Device; give one"}
			}
			if err := s.Device.Check(l.ShardBytes); err != nil {
				return &BatchError{i, s.Key, err.Error()}
			}
			continue
		}
		if int64(len(s.Buf)) != l.ShardBytes {
			return &BatchError{i, s.Key, fmt.Sprintf("its buffer has %d bytes; a shard has %d", len(s.Buf), l.ShardBytes)}
		}
	}
	return nil
}

// ByBlock is the package function for shards of this package.
func (l Layout) ByBlock(keys []Key, bufs [][]byte) []Shard { return ByBlock[Shard](l, keys, bufs) }

// ByLayer is the package function for shards of this package.
func (l Layout) ByLayer(keys []Key, bufs [][]byte) []Shard { return ByLayer[Shard](l, keys, bufs) }

// shard is Shard, and that of package kvstore.
type shard interface {
	~struct {
		Key    Key
		Index  int
		Buf    []byte
		Device *device.Place
	}
}

// ByBlock cuts each buffer into the shards of a block, one block after the other. See
// kvstore.Layout for buffers that do not fit.
func ByBlock[S shard](l Layout, keys []Key, bufs [][]byte) []S {
	return cut[S](l, keys, false, func(b, i int) ([]byte, *device.Place) { return l.part(bufs, b, i), nil })
}

// ByLayer is ByBlock with the first shard of every block first, then the second.
func ByLayer[S shard](l Layout, keys []Key, bufs [][]byte) []S {
	return cut[S](l, keys, true, func(b, i int) ([]byte, *device.Place) { return l.part(bufs, b, i), nil })
}

// ByBlockOn is ByBlock for memory of a device: the block keys[i] begins at places[i].
func ByBlockOn[S shard](l Layout, keys []Key, places []device.Place) []S {
	return cut[S](l, keys, false, l.partsOn(keys, places))
}

// ByLayerOn is ByLayer for memory of a device.
func ByLayerOn[S shard](l Layout, keys []Key, places []device.Place) []S {
	return cut[S](l, keys, true, l.partsOn(keys, places))
}

// cut makes the shards of blocks. memory returns that of the i-th shard of the b-th block.
func cut[S shard](l Layout, keys []Key, byLayer bool, memory func(b, i int) ([]byte, *device.Place)) []S {
	if l.Check() != nil {
		return nil
	}
	shards := make([]S, len(keys)*l.Shards())
	for b, key := range keys {
		for i := range l.Shards() {
			buf, at := memory(b, i)
			n := b*l.Shards() + i
			if byLayer {
				n = i*len(keys) + b
			}
			shards[n] = S{key, i, buf, at}
		}
	}
	return shards
}

// partsOn returns where shards of blocks are that begin at these places. One that has none
// gets a place without a buffer.
func (l Layout) partsOn(keys []Key, places []device.Place) func(b, i int) ([]byte, *device.Place) {
	at := make([]device.Place, len(keys)*l.Shards())
	return func(b, i int) ([]byte, *device.Place) {
		p := &at[b*l.Shards()+i]
		if b < len(places) {
			*p = places[b]
			p.Offset += int64(i) * l.ShardBytes
		}
		return nil, p
	}
}

// part returns the bytes of the b-th buffer that belong to the i-th shard.
func (l Layout) part(bufs [][]byte, b, i int) []byte {
	if b >= len(bufs) {
		return nil
	}
	size := int64(len(bufs[b]))
	return bufs[b][min(int64(i)*l.ShardBytes, size):min(int64(i+1)*l.ShardBytes, size)]
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
