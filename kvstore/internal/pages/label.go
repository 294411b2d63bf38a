package pages

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"math"

	"github.com/zeebo/xxh3"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// label is the content of the first 4096 bytes of a page file. Numbers are little-endian:
//
//	  0  8  magic "kv3fsPGF"
//	  8  4  version, 1
//	 12  4  rank
//	 16 16  fingerprint of the namespace
//	 32  8  bytes of a block
//	 40  8  bytes of a shard
//	 48  8  bytes of a page
//	 56  8  number of pages
//	 64 16  the file's own number
//	...     zeros
//	4088 8  XXH3-64 of all bytes before
//
// Page n is at labelBytes + n*strideBytes: the block, zeros up to the next multiple of
// 4096, and the block's record.
type label struct {
	rank        int
	namespace   kv.Fingerprint
	layout      kv.Layout
	strideBytes int64
	pages       int64
	id          [16]byte
}

const (
	labelBytes   = 4096
	labelVersion = 1
	labelSumAt   = labelBytes - 8

	// maxPages is the service's limit.
	maxPages = 1 << 31
)

var labelMagic = [8]byte{'k', 'v', '3', 'f', 's', 'P', 'G', 'F'}

// strideOf returns the length of a page.
func strideOf(l kv.Layout) int64 { return headAt(l) + blockhead.Size }

// headAt returns where in a page its record is.
func headAt(l kv.Layout) int64 {
	return (l.BlockBytes + blockhead.Size - 1) / blockhead.Size * blockhead.Size
}

// at returns where a page begins.
func (l *label) at(page int64) int64 { return labelBytes + page*l.strideBytes }

// sizeBytes returns the size of the file.
func (l *label) sizeBytes() int64 { return l.at(l.pages) }

func (l *label) encode() []byte {
	b := make([]byte, labelBytes)
	copy(b, labelMagic[:])
	binary.LittleEndian.PutUint32(b[8:], labelVersion)
	binary.LittleEndian.PutUint32(b[12:], uint32(l.rank))
	copy(b[16:], l.namespace[:])
	binary.LittleEndian.PutUint64(b[32:], uint64(l.layout.BlockBytes))
	binary.LittleEndian.PutUint64(b[40:], uint64(l.layout.ShardBytes))
	binary.LittleEndian.PutUint64(b[48:], uint64(l.strideBytes))
	binary.LittleEndian.PutUint64(b[56:], uint64(l.pages))
	copy(b[64:], l.id[:])
	binary.LittleEndian.PutUint64(b[labelSumAt:], xxh3.Hash(b[:labelSumAt]))
	return b
}

func decodeLabel(b []byte) (l label, err error) {
	if len(b) < labelBytes || [8]byte(b) != labelMagic {
		return l, errors.New("it is no page file of kv3fs; name another one")
	}
	if xxh3.Hash(b[:labelSumAt]) != binary.LittleEndian.Uint64(b[labelSumAt:]) {
		return l, errors.New("its label is damaged; remove it, and it is made anew, empty")
	}
	if v := binary.LittleEndian.Uint32(b[8:]); v != labelVersion {
		return l, fmt.Errorf("it is of version %d; this program knows version %d", v, labelVersion)
	}
	number := func(at int) int64 { return int64(binary.LittleEndian.Uint64(b[at:])) }
	l = label{
		rank:      int(binary.LittleEndian.Uint32(b[12:])),
		namespace: kv.Fingerprint(b[16:32]),
		layout:    kv.Layout{BlockBytes: number(32), ShardBytes: number(40)},
		pages:     number(56), strideBytes: number(48), id: [16]byte(b[64:80]),
	}
	if l.layout.Check() != nil || l.layout.BlockBytes > math.MaxInt64/4 || l.strideBytes != strideOf(l.layout) ||
		l.pages < 1 || l.pages > maxPages || l.pages > (math.MaxInt64-labelBytes)/l.strideBytes {
		return l, errors.New("its label makes no sense")
	}
	return l, nil
}

// match returns why a store cannot use the file, or nil.
func (l *label) match(o *Options) error {
	switch {
	case l.namespace != o.Namespace:
		return fmt.Errorf("it is of namespace %s, not %s: another model's. Name another file", l.namespace, o.Namespace)
	case l.layout != o.Layout:
		return fmt.Errorf("its blocks have %d bytes in shards of %d, not %d in shards of %d. Name another file, or remove this one",
			l.layout.BlockBytes, l.layout.ShardBytes, o.Layout.BlockBytes, o.Layout.ShardBytes)
	case l.rank != o.Rank:
		return fmt.Errorf("it is of rank %d, not %d. Name another file", l.rank, o.Rank)
	case o.CapacityBytes != 0 && o.CapacityBytes/l.strideBytes != l.pages:
		return fmt.Errorf("it has %d pages, and %d bytes are %d: leave the capacity out, or remove the file", l.pages, o.CapacityBytes, o.CapacityBytes/l.strideBytes)
	}
	return nil
}

// same returns why a file with these first bytes is not the one of the label, or nil.
func (l *label) same(raw []byte) error {
	got, err := decodeLabel(raw)
	if err == nil && got != *l {
		err = errors.New("another one has taken its place; open the store anew")
	}
	return err
}

// spaceName returns the service's name for the fingerprint and the layout.
func (l *label) spaceName() string {
	return fmt.Sprintf("kv-%s-%d-%d", l.namespace, l.layout.BlockBytes, l.layout.Shards())
}

// poolName returns the service's name for the file.
func (l *label) poolName() string { return "file-" + hex.EncodeToString(l.id[:]) }
