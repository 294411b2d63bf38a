// Package segment is a kv.Store that packs blocks into large preallocated files, which it
// writes front to back, and keeps an index of them in memory. A hit costs a read of the
// block and of its head, and no metadata operation at all.
//
// A directory belongs to one process and contains
//
//	segments.lock    locked by that process; its process id
//	segments.super   the mark that the directory is ours, and its layout, twice
//	segment-000000   files of SegmentBytes each
//	...
//
// A segment is a header, slots, and an index of the slots (see geometry). It is reused in
// generations. Writing a new header begins a new one. Heads of blocks carry their
// generation; those of an earlier one no longer count. When no free segment is left, the
// one that was filled first is recycled: its hottest blocks are carried to the segment
// that is being written, and the others are evicted.
//
// After a crash. Data is written before its head, and a block is found again only if its
// head is whole. So after a kill -9 every block whose save was settled is there, and
// none that was deleted; after a power cut a block is right or a miss. A header is
// written before anything of its generation, and a carried copy before the old
// generation ends. The index at a segment's end repeats what the heads say, in pages
// with checksums. Where a page is torn, or older than the header, the heads are read.
// fdatasync is called for each full segment while nobody loads, at the latest a minute after it
// is full, and not for each Flush.
package segment
