package integrity

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"

	"github.com/zeebo/xxh3"
)

// A record of the log, numbers little-endian:
//
//	 0 4  magic "kSu2"
//	 4 4  bytes of the record
//	 8 8  inode
//	16 8  time of birth, ns
//	24 8  time of modification, ns
//	32 8  size
//	40 8  the boot in which it was written
//	48 8  end of the file that the last range's sum is for
//	56 8  that sum
//	64 4  runs of sums; 0xffffffff: the inode is gone
//	68 4  0
//	72 8  time of change, ns
//	80    each run: first range (8), how many (8), their words (8 each)
//	.. 8  XXH3 of all before
type record struct {
	stamp stamp
	boot  uint64
	tail  tail
	words table
}

const (
	recordMagic = 'k' | 'S'<<8 | 'u'<<16 | '2'<<24
	headBytes   = 80
	sumBytes    = 8
	goneRuns    = math.MaxUint32
)

var order = binary.LittleEndian

// appendGone appends the record that says that an inode is gone.
func appendGone(b []byte, ino uint64) []byte {
	begin := len(b)
	b = append(b, make([]byte, headBytes)...)
	order.PutUint64(b[begin+8:], ino)
	order.PutUint32(b[begin+64:], goneRuns)
	return finish(b, begin)
}

func (r *record) append(b []byte) []byte {
	begin := len(b)
	b = append(b, make([]byte, headBytes)...)
	h := b[begin:]
	for i, v := range []uint64{r.stamp.ino, uint64(r.stamp.birthNs), uint64(r.stamp.mtimeNs), uint64(r.stamp.size), r.boot, uint64(r.tail.end), uint64(r.tail.word)} {
		order.PutUint64(h[8+8*i:], v)
	}
	order.PutUint64(h[72:], uint64(r.stamp.ctimeNs))
	runs, countAt := uint32(0), 0
	next := int64(-1)
	for _, i := range slices.Sorted(maps.Keys(r.words)) {
		for j, w := range r.words[i] {
			if w == 0 {
				continue
			}
			k := i*chunkRanges + int64(j)
			if k != next {
				b = order.AppendUint64(b, uint64(k))
				countAt = len(b)
				b = order.AppendUint64(b, 0)
				runs++
			}
			b = order.AppendUint64(b, uint64(w))
			order.PutUint64(b[countAt:], order.Uint64(b[countAt:])+1)
			next = k + 1
		}
	}
	order.PutUint32(b[begin+64:], runs)
	return finish(b, begin)
}

func finish(b []byte, begin int) []byte {
	order.PutUint32(b[begin:], recordMagic)
	order.PutUint32(b[begin+4:], uint32(len(b)-begin+sumBytes))
	return order.AppendUint64(b, xxh3.Hash(b[begin:]))
}

// recordAt returns the length of the record that b begins with, and its inode. ok is false for
// anything that is not a whole record.
func recordAt(b []byte) (n int, ino uint64, gone, ok bool) {
	if len(b) < headBytes+sumBytes || order.Uint32(b) != recordMagic {
		return 0, 0, false, false
	}
	n = int(order.Uint32(b[4:]))
	if n < headBytes+sumBytes || n > len(b) || order.Uint64(b[n-sumBytes:]) != xxh3.Hash(b[:n-sumBytes]) {
		return 0, 0, false, false
	}
	return n, order.Uint64(b[8:]), order.Uint32(b[64:]) == goneRuns, true
}

// parse reads a record that recordAt has accepted.
func (r *record) parse(b []byte) bool {
	u := func(at int) uint64 { return order.Uint64(b[at:]) }
	r.stamp = stamp{ino: u(8), birthNs: int64(u(16)), mtimeNs: int64(u(24)), size: int64(u(32)), ctimeNs: int64(u(72))}
	r.boot = u(40)
	r.tail = tail{int64(u(48)), word(u(56))}
	r.words = make(table)
	any := func() bool { return true } // a table that was saved had its chunks
	runs := order.Uint32(b[64:])
	b = b[headBytes : len(b)-sumBytes]
	for range runs {
		if len(b) < 16 {
			return false
		}
		first, n := order.Uint64(b), order.Uint64(b[8:])
		b = b[16:]
		if n > uint64(len(b)/8) || first > math.MaxInt64/RangeBytes-n {
			return false
		}
		for i := range n {
			r.words.set(int64(first+i), word(order.Uint64(b[8*i:])), any)
		}
		b = b[8*n:]
	}
	return len(b) == 0
}
