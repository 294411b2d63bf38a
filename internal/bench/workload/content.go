package workload

import "encoding/binary"

// Pattern is the content that a block must have. It is derived from the block's name, so
// checking it needs no record.
//
// The eight bytes at offset 8*i are mix(seed + i*weyl), little endian: two
// patterns differ in every word at the same offset, and a pattern read at a
// wrong offset differs too. Filling and checking run at memory speed.
type Pattern struct{ seed uint64 }

const (
	weyl = 0x9e3779b97f4a7c15
	// Multiples of weyl modulo 2^64, which untyped constants do not wrap to.
	weyl2 = 2 * weyl & (1<<64 - 1)
	weyl3 = 3 * weyl & (1<<64 - 1)
	weyl4 = 4 * weyl & (1<<64 - 1)

	mixMult = 0xd6e8feb86659fd93
)

// PatternOf returns the pattern for the given numbers.
func PatternOf(names ...uint64) Pattern {
	var seed uint64
	for _, n := range names {
		seed = splitmix(seed ^ splitmix(n+weyl))
	}
	return Pattern{seed}
}

// splitmix is the finalizer of SplitMix64: every bit of x affects every bit
// of the result.
func splitmix(x uint64) uint64 {
	x += weyl
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// mix spreads a counter over a word. One multiplication is enough here: the
// seed went through splitmix, and this runs once for every eight bytes.
func mix(x uint64) uint64 {
	x = (x ^ x>>32) * mixMult
	return x ^ x>>29
}

// Fill writes the pattern from its start to dst.
func (p Pattern) Fill(dst []byte) {
	x := p.seed
	for len(dst) >= 32 {
		binary.LittleEndian.PutUint64(dst[0:8], mix(x))
		binary.LittleEndian.PutUint64(dst[8:16], mix(x+weyl))
		binary.LittleEndian.PutUint64(dst[16:24], mix(x+weyl2))
		binary.LittleEndian.PutUint64(dst[24:32], mix(x+weyl3))
		x += weyl4
		dst = dst[32:]
	}
	for i := range dst {
		dst[i] = wordByte(x, i)
	}
}

// Spoil writes bytes to dst that differ from the pattern's in every place, so that what a
// read leaves out is seen.
func (p Pattern) Spoil(dst []byte) {
	p.Fill(dst)
	for len(dst) >= 8 {
		binary.LittleEndian.PutUint64(dst, ^binary.LittleEndian.Uint64(dst))
		dst = dst[8:]
	}
	for i := range dst {
		dst[i] = ^dst[i]
	}
}

// Check compares got with the pattern from its start. It returns how many bytes differ and
// where the first of them is (-1 if none does).
func (p Pattern) Check(got []byte) (wrongBytes, first int) {
	x, rest := p.seed, got
	for len(rest) >= 32 {
		diff := binary.LittleEndian.Uint64(rest[0:8]) ^ mix(x)
		diff |= binary.LittleEndian.Uint64(rest[8:16]) ^ mix(x+weyl)
		diff |= binary.LittleEndian.Uint64(rest[16:24]) ^ mix(x+weyl2)
		diff |= binary.LittleEndian.Uint64(rest[24:32]) ^ mix(x+weyl3)
		if diff != 0 {
			break
		}
		x += weyl4
		rest = rest[32:]
	}
	first = -1
	done := len(got) - len(rest)
	for i, b := range rest {
		if b != wordByte(x, i) {
			if first < 0 {
				first = done + i
			}
			wrongBytes++
		}
	}
	return wrongBytes, first
}

// wordByte is byte i of the pattern whose word 0 has counter x.
func wordByte(x uint64, i int) byte {
	return byte(mix(x+uint64(i/8)*weyl) >> (i % 8 * 8))
}
