package kv

import "fmt"

// MaxShards is how many shards a block may have.
const MaxShards = 488

// Layout is the size of blocks and of their parts. All blocks of a store have
// the same.
type Layout struct {
	BlockBytes int64 // of a block
	ShardBytes int64 // of each of its shards: a layer's part of it, or the whole block
}

// Shards is how many shards a block has.
func (l Layout) Shards() int { return int(l.BlockBytes / l.ShardBytes) }

// Check says what is wrong with a layout.
func (l Layout) Check() error {
	switch {
	case l.BlockBytes <= 0:
		return fmt.Errorf("kvstore: block_size is %d bytes; it must be positive", l.BlockBytes)
	case l.ShardBytes <= 0:
		return fmt.Errorf("kvstore: shard_size is %d bytes; it must be positive", l.ShardBytes)
	case l.BlockBytes%l.ShardBytes != 0:
		return fmt.Errorf("kvstore: a block_size of %d bytes is not a multiple of the shard_size of %d", l.BlockBytes, l.ShardBytes)
	case l.BlockBytes/l.ShardBytes > MaxShards:
		return fmt.Errorf("kvstore: a block_size of %d bytes has %d shards of %d; at most %d are possible",
			l.BlockBytes, l.BlockBytes/l.ShardBytes, l.ShardBytes, MaxShards)
	}
	return nil
}

// Shard is one part of a block and the caller's memory for it.
type Shard struct {
	Key   Key
	Index int    // below Layout.Shards; an engine that goes layer by layer makes it the layer
	Buf   []byte // exactly Layout.ShardBytes long
}

// CheckShards says what is wrong with a batch, naming the first shard that is.
// Every store begins Load and Dump with it.
func (l Layout) CheckShards(shards []Shard) error {
	if len(shards) == 0 {
		return &BatchError{Shard: -1, Reason: "it has no shards"}
	}
	for i, s := range shards {
		if s.Index < 0 || s.Index >= l.Shards() {
			return &BatchError{i, s.Key, fmt.Sprintf("its index is %d; blocks have %d shards", s.Index, l.Shards())}
		}
		if int64(len(s.Buf)) != l.ShardBytes {
			return &BatchError{i, s.Key, fmt.Sprintf("its buffer has %d bytes; a shard has %d", len(s.Buf), l.ShardBytes)}
		}
	}
	return nil
}

// ByBlock cuts each buffer of BlockBytes into shards, one block after the other.
func (l Layout) ByBlock(keys []Key, bufs [][]byte) []Shard {
	shards := make([]Shard, 0, len(keys)*l.Shards())
	for b, key := range keys {
		for i := range l.Shards() {
			shards = append(shards, Shard{key, i, l.part(bufs[b], i)})
		}
	}
	return shards
}

// ByLayer is ByBlock in the order in which an engine wants to have them: the
// first shard of all blocks, then the second.
func (l Layout) ByLayer(keys []Key, bufs [][]byte) []Shard {
	shards := make([]Shard, 0, len(keys)*l.Shards())
	for i := range l.Shards() {
		for b, key := range keys {
			shards = append(shards, Shard{key, i, l.part(bufs[b], i)})
		}
	}
	return shards
}

func (l Layout) part(buf []byte, i int) []byte {
	return buf[int64(i)*l.ShardBytes : int64(i+1)*l.ShardBytes]
}

// Checksums says what a store makes of checksums.
type Checksums string

const (
	// ChecksumsAuto, the default: record one for all that is dumped, and check all
	// that has one. A layout of our own always does.
	ChecksumsAuto Checksums = "auto"
	// ChecksumsRequire: what has none is a miss.
	ChecksumsRequire Checksums = "require"
	// ChecksumsOff: load without checking. For measuring what checking costs.
	ChecksumsOff Checksums = "off"
)
