package keys

import (
	"encoding/binary"
	"math"
	"math/bits"
)

// pickler writes what CPython's pickle.dumps writes with protocol 5, the highest of
// versions 3.8 to 3.14, for the few types that chains need. Tuples and byte strings are
// put into the memo and never fetched from it, since none occurs twice.
type pickler struct {
	buf   []byte
	frame int // where the payload of the open frame starts
}

const frameTarget = 64 << 10

func (p *pickler) begin(dst []byte) {
	p.buf = append(dst, 0x80, 5)
	p.open()
}

// open writes a frame's header; close fills in its length. CPython omits the header if
// fewer than 4 bytes follow, which never happens here.
func (p *pickler) open() {
	p.buf = append(p.buf, 0x95, 0, 0, 0, 0, 0, 0, 0, 0)
	p.frame = len(p.buf)
}

func (p *pickler) close() {
	binary.LittleEndian.PutUint64(p.buf[p.frame-8:], uint64(len(p.buf)-p.frame))
}

// end writes the last byte.
func (p *pickler) end() []byte {
	p.buf = append(p.buf, '.')
	p.close()
	return p.buf
}

// object begins the next object. A frame that is long enough ends before it.
func (p *pickler) object() {
	if len(p.buf)-p.frame >= frameTarget {
		p.close()
		p.open()
	}
}

// number writes an int that is not negative: 1, 2 or 4 bytes up to 31 bits; beyond that,
// as many as leave the top bit clear.
func (p *pickler) number(n uint64) {
	p.object()
	switch {
	case n <= math.MaxUint8:
		p.buf = append(p.buf, 'K', byte(n))
	case n <= math.MaxUint16:
		p.buf = append(p.buf, 'M', byte(n), byte(n>>8))
	case n <= math.MaxInt32:
		p.buf = binary.LittleEndian.AppendUint32(append(p.buf, 'J'), uint32(n))
	default:
		size := bits.Len64(n)/8 + 1
		p.buf = append(p.buf, 0x8a, byte(size))
		for range size {
			p.buf = append(p.buf, byte(n))
			n >>= 8
		}
	}
}

// bytes writes a byte string of at most 255 bytes.
func (p *pickler) bytes(b []byte) {
	p.object()
	p.buf = append(p.buf, 'C', byte(len(b)))
	p.buf = append(p.buf, b...)
	p.memoize()
}

// text writes a str of at most 255 bytes.
func (p *pickler) text(s string) {
	p.object()
	p.buf = append(p.buf, 0x8c, byte(len(s)))
	p.buf = append(p.buf, s...)
	p.memoize()
}

func (p *pickler) none() {
	p.object()
	p.buf = append(p.buf, 'N')
}

func (p *pickler) emptyTuple() {
	p.object()
	p.buf = append(p.buf, ')')
}

// numbers writes a tuple of at least one int.
func (p *pickler) numbers(all []uint32) {
	p.object()
	if len(all) > 3 {
		p.buf = append(p.buf, '(')
	}
	for _, n := range all {
		p.number(uint64(n))
	}
	if len(all) > 3 {
		p.buf = append(p.buf, 't')
		p.memoize()
	} else {
		p.tuple(len(all))
	}
}

// tuple makes a tuple of the last 1 to 3 objects.
func (p *pickler) tuple(objects int) {
	p.buf = append(p.buf, 0x84+byte(objects))
	p.memoize()
}

func (p *pickler) memoize() { p.buf = append(p.buf, 0x94) }

// pickledText returns pickle.dumps of a str.
func pickledText(dst []byte, s string) []byte {
	var p pickler
	p.begin(dst)
	p.text(s)
	return p.end()
}
