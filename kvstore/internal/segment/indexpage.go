package segment

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// A page of a segment's index says which keys 253 neighbouring slots have:
//
//	 0  8    XXH3-64 of all bytes behind, seeded with the segment's number and the page's
//	 8  8    generation
//	16  32   a bit for each slot: it has a block
//	48  4048 the keys
//
// It does not repeat the heads' checksums: a head is read with every load, and tells
// itself whether it is whole and of this generation.
const (
	indexBitsAt = 16
	indexKeysAt = 48
	indexSlots  = (pageBytes - indexKeysAt) / 16
)

func indexSeed(number uint32, page int) uint64 { return uint64(number)<<32 | uint64(uint32(page)) }

// setIndexed enters the key of the i-th slot of a page.
func setIndexed(page []byte, i int, key kv.Key) {
	page[indexBitsAt+i/8] |= 1 << (i % 8)
	copy(page[indexKeysAt+16*i:], key[:])
}

// indexed is the key of the i-th slot.
func indexed(page []byte, i int) (key kv.Key, ok bool) {
	if page[indexBitsAt+i/8]&(1<<(i%8)) == 0 {
		return key, false
	}
	return kv.Key(page[indexKeysAt+16*i : indexKeysAt+16*i+16]), true
}

// sealIndex completes a page.
func sealIndex(page []byte, number uint32, n int, generation uint64) {
	binary.LittleEndian.PutUint64(page[8:], generation)
	binary.LittleEndian.PutUint64(page, xxh3.HashSeed(page[8:pageBytes], indexSeed(number, n)))
}

// indexValid reports whether a page is the n-th of that segment, of that generation, and
// whole.
func indexValid(page []byte, number uint32, n int, generation uint64) bool {
	return len(page) >= pageBytes &&
		binary.LittleEndian.Uint64(page[8:]) == generation &&
		binary.LittleEndian.Uint64(page) == xxh3.HashSeed(page[8:pageBytes], indexSeed(number, n))
}
