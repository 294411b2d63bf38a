package pages

import (
	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// record is memory for the record of a block, and its content. It is reused, unless the
// engine may still be using it.
type record struct {
	raw  []byte
	head blockhead.Head
}

func newRecord() *record { return &record{raw: make([]byte, blockhead.Size)} }

// recordOf returns the record of a whole block.
func (s *Store) recordOf(key kv.Key, sums []uint64) *record {
	r := s.heads.Get().(*record)
	h := blockhead.Head{Namespace: s.o.Namespace, Key: key, BlockBytes: s.o.Layout.BlockBytes, Sums: sums}
	h.Encode(r.raw)
	return r
}
