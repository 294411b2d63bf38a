package enginebench

import (
	"encoding/binary"
	"fmt"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/kvstore"
)

// patternOf returns the content of a shard, which stands for computed KV.
func patternOf(key kvstore.Key, shard int) workload.Pattern {
	return workload.PatternOf(binary.LittleEndian.Uint64(key[:8]), binary.LittleEndian.Uint64(key[8:]), uint64(shard))
}

// fillBlock writes the content of a block.
func fillBlock(buf []byte, key kvstore.Key, l kvstore.Layout) {
	for i := range l.Shards() {
		patternOf(key, i).Fill(buf[int64(i)*l.ShardBytes : int64(i+1)*l.ShardBytes])
	}
}

// WrongBytesError says that a store loaded other bytes than were saved.
type WrongBytesError struct {
	Bytes, Blocks int
	First         string // where the first are
}

func (e *WrongBytesError) Error() string {
	return fmt.Sprintf("bench: %d wrong bytes in %d loaded blocks; the first: %s", e.Bytes, e.Blocks, e.First)
}

// checkBlocks compares loaded blocks with their content.
func checkBlocks(bufs [][]byte, keys []kvstore.Key, l kvstore.Layout) error {
	var wrong WrongBytesError
	for b, key := range keys {
		bad := 0
		for i := range l.Shards() {
			n, first := patternOf(key, i).Check(bufs[b][int64(i)*l.ShardBytes : int64(i+1)*l.ShardBytes])
			if n > 0 && wrong.First == "" {
				wrong.First = fmt.Sprintf("block %s, shard %d, offset %d", key, i, first)
			}
			bad += n
		}
		if bad > 0 {
			wrong.Bytes += bad
			wrong.Blocks++
		}
	}
	if wrong.Bytes > 0 {
		return &wrong
	}
	return nil
}
