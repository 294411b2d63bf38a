package segment

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

const (
	pageBytes = 4096
	version   = 1
	ownSumAt  = pageBytes - 8
)

// Superblock and header are a page each, of little-endian numbers:
//
//	  0  8  magic
//	  8  4  version, 1
//	 12  4  number of the segment
//	 16 16  fingerprint of the namespace
//	 32  8  generation
//	 40  8  bytes of a block
//	 48  8  bytes of a shard
//	 56  8  bytes of a segment
//	...     zeros
//	4088 8  XXH3-64 of all bytes before
//
// The superblock leaves number, namespace and generation zero.
type record struct {
	number       uint32
	namespace    kv.Fingerprint
	generation   uint64
	layout       kv.Layout
	segmentBytes int64
}

type magic [8]byte

var (
	superMagic  = magic{'k', 'v', '3', 'f', 's', 'S', 'E', 'T'}
	headerMagic = magic{'k', 'v', '3', 'f', 's', 'S', 'E', 'G'}
)

var (
	errNoRecord = errors.New("nothing of ours is there")
	errVersion  = fmt.Errorf("this program knows version %d only", version)
)

func (r *record) encode(m magic) []byte {
	page := make([]byte, pageBytes)
	copy(page, m[:])
	binary.LittleEndian.PutUint32(page[8:], version)
	binary.LittleEndian.PutUint32(page[12:], r.number)
	copy(page[16:], r.namespace[:])
	binary.LittleEndian.PutUint64(page[32:], r.generation)
	binary.LittleEndian.PutUint64(page[40:], uint64(r.layout.BlockBytes))
	binary.LittleEndian.PutUint64(page[48:], uint64(r.layout.ShardBytes))
	binary.LittleEndian.PutUint64(page[56:], uint64(r.segmentBytes))
	binary.LittleEndian.PutUint64(page[ownSumAt:], xxh3.Hash(page[:ownSumAt]))
	return page
}

func (r *record) decode(m magic, page []byte) error {
	switch {
	case len(page) < pageBytes:
		return fmt.Errorf("it has %d bytes instead of %d", len(page), pageBytes)
	case magic(page) != m:
		return errNoRecord
	case xxh3.Hash(page[:ownSumAt]) != binary.LittleEndian.Uint64(page[ownSumAt:]):
		return errors.New("its checksum is wrong")
	}
	if v := binary.LittleEndian.Uint32(page[8:]); v != version {
		return fmt.Errorf("it is of version %d: %w", v, errVersion)
	}
	r.number = binary.LittleEndian.Uint32(page[12:])
	r.namespace = kv.Fingerprint(page[16:32])
	r.generation = binary.LittleEndian.Uint64(page[32:])
	r.layout.BlockBytes = int64(binary.LittleEndian.Uint64(page[40:]))
	r.layout.ShardBytes = int64(binary.LittleEndian.Uint64(page[48:]))
	r.segmentBytes = int64(binary.LittleEndian.Uint64(page[56:]))
	if err := r.layout.Check(); err != nil {
		return err
	}
	if r.segmentBytes <= 0 || r.segmentBytes%pageBytes != 0 {
		return fmt.Errorf("it names segments of %d bytes", r.segmentBytes)
	}
	return nil
}
