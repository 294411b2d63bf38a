package segment

import (
	"fmt"

	"github.com/kv3fs/kv3fs/kvstore/internal/blockhead"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// geometry is what is where in a segment:
//
//	header  a page
//	slots   each a block, rounded up to pages, and then its head
//	index   a page for every 253 slots, up to the segment's end
//
// The head is behind the block because it is written behind it.
type geometry struct {
	layout       kv.Layout
	segmentBytes int64
	strideBytes  int64 // from one slot to the next
	slots        int
}

const (
	// defaultSegmentBytes is long enough that fdatasync, the header and the index cost
	// nothing beside the blocks.
	defaultSegmentBytes = 1 << 30
	maxSegmentBytes     = 1 << 50
	minSegments         = 3 // one is written, one is ready, one has blocks
	usualSegments       = 16
	maxSegments         = 1024
)

func strideOf(l kv.Layout) int64 { return roundUp(l.BlockBytes) + blockhead.Size }

func roundUp(n int64) int64 { return (n + pageBytes - 1) / pageBytes * pageBytes }

// newGeometry cuts a segment of so many bytes.
func newGeometry(l kv.Layout, segmentBytes int64) (geometry, error) {
	if l.BlockBytes > maxSegmentBytes/2 {
		return geometry{}, fmt.Errorf("segment store: blocks of %d bytes are larger than any segment", l.BlockBytes)
	}
	g := geometry{layout: l, segmentBytes: segmentBytes, strideBytes: strideOf(l)}
	if segmentBytes%pageBytes != 0 || segmentBytes < minSegmentBytes(l) || segmentBytes > maxSegmentBytes {
		return g, fmt.Errorf("segment store: segments of %d bytes; they must be a multiple of %d bytes, and for blocks of %d bytes at least %d and at most %d",
			segmentBytes, pageBytes, l.BlockBytes, minSegmentBytes(l), int64(maxSegmentBytes))
	}
	// As many as would fit if each brought its share of an index page, and one or two
	// more where the last page is not full.
	g.slots = int((segmentBytes - 2*pageBytes) * indexSlots / (g.strideBytes*indexSlots + pageBytes))
	for more := g; ; g = more {
		if more.slots++; more.slotAt(more.slots) > more.indexAt() {
			return g, nil
		}
	}
}

// minSegmentBytes is the size of a segment of one block.
func minSegmentBytes(l kv.Layout) int64 { return pageBytes + strideOf(l) + pageBytes }

func (g *geometry) slotAt(i int) int64 { return pageBytes + int64(i)*g.strideBytes }
func (g *geometry) headAt(i int) int64 { return g.slotAt(i+1) - blockhead.Size }
func (g *geometry) indexPages() int    { return (g.slots + indexSlots - 1) / indexSlots }
func (g *geometry) indexAt() int64     { return g.segmentBytes - int64(g.indexPages())*pageBytes }

// A file system may count some of its own blocks, which say where a file's are, as
// the file's. ownBytes is for the superblock, the lock, and theirs.
const ownBytes = 32 << 10

func onDiskBytes(segmentBytes int64) int64 { return segmentBytes + segmentBytes/1024 + 4*pageBytes }

// segmentsFor is how many segments a capacity has space for.
func segmentsFor(capacityBytes, segmentBytes int64) int {
	return int(max(0, capacityBytes-ownBytes) / onDiskBytes(segmentBytes))
}

// chooseSegmentBytes returns the size of segments where none was given.
func chooseSegmentBytes(capacityBytes int64, l kv.Layout) int64 {
	n := min(defaultSegmentBytes, (capacityBytes-ownBytes)/usualSegments)
	n = max(n, capacityBytes/maxSegments)
	return max(n/pageBytes*pageBytes, minSegmentBytes(l))
}
