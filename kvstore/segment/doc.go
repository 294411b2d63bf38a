// Package segment keeps blocks packed into large preallocated files that are written
// front to back, and an index of them in memory: a hit costs a read of the block and
// of its head, and no metadata operation at all.
//
// A directory belongs to one process and has
//
//	segments.lock    held by that process, and its number
//	segments.super   that the directory is ours, and its layout
//	segment-000000   files of SegmentBytes each
//	...
//
// A segment is a header, slots, and an index of the slots (see geometry). It lives in
// generations. A new one begins when its header says so; heads of blocks carry their
// generation, and those of an earlier one count no more. When no free segment is left
// the one that was filled first is recycled: its hottest blocks are carried to where
// everybody writes, the others are evicted.
//
// What a crash leaves. Data is written before its head, and what the head says is
// found again only when it is whole: after a kill -9 every block whose save was
// settled is there, after a power cut it is right or a miss. A header is written
// before anything of its generation, and a carried copy before the old generation
// ends. The index at a segment's end repeats what the heads say, page by page with
// checksums; where a page is torn, or older than the header, the heads are read.
// fdatasync is called when a segment is full, and not for each Flush.
package segment
