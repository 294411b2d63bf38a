package kvcm

import (
	"encoding/binary"
	"math/bits"
)

// hash64 is the hash that KVCM took over from RocksDB (util/xxph3.h): XXH3 as it was in
// xxHash 0.7.2, before its release. It differs from the XXH3 of today in how it mixes short
// inputs, in where it reads the secret, and in that an empty input has a hash of the seed.
func hash64(b []byte, seed uint64) uint64 {
	n := uint64(len(b))
	switch {
	case n == 0:
		return fold(seed+u64(secret[:]), prime2)
	case n <= 3:
		combined := uint64(b[0]) | uint64(b[n/2])<<8 | uint64(b[n-1])<<16 | n<<24
		return avalanche((combined ^ (uint64(u32(secret[:])) + seed)) * prime1)
	case n <= 8:
		keyed := (uint64(u32(b)) | uint64(u32(b[n-4:]))<<32) ^ (u64(secret[:]) + seed)
		mixed := n + (keyed^keyed>>51)*prime32x1
		return avalanche((mixed ^ mixed>>47) * prime2)
	case n <= 16:
		low := u64(b) ^ (u64(secret[:]) + seed)
		high := u64(b[n-8:]) ^ (u64(secret[8:]) - seed)
		return avalanche(n + low + high + fold(low, high))
	case n <= 128:
		acc := n * prime1
		for i := range (n-1)/32 + 1 { // from both ends to the middle
			acc += mix16(b[16*i:], secret[32*i:], seed) + mix16(b[n-16*(i+1):], secret[32*i+16:], seed)
		}
		return avalanche(acc)
	case n <= 240:
		acc := n * prime1
		for i := range uint64(8) {
			acc += mix16(b[16*i:], secret[16*i:], seed)
		}
		acc = avalanche(acc)
		for i := range n/16 - 8 {
			acc += mix16(b[128+16*i:], secret[3+16*i:], seed)
		}
		return avalanche(acc + mix16(b[n-16:], secret[leastSecret-17:], seed))
	}
	return hashLong(b, seed)
}

const (
	prime1    = 0x9E3779B185EBCA87
	prime2    = 0xC2B2AE3D27D4EB4F
	prime3    = 0x165667B19E3779F9
	prime4    = 0x85EBCA77C2B2AE63
	prime5    = 0x27D4EB2F165667C5
	prime32x1 = 0x9E3779B1
	prime32x2 = 0x85EBCA77
	prime32x3 = 0xC2B2AE3D

	stripe      = 64
	leastSecret = 136
	blockBytes  = (len(secret) - stripe) / 8 * stripe
)

// secret is XXH3's, the same in all versions.
var secret = [192]byte{
	0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb,
	0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
	0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
	0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
	0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31,
	0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
	0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc,
	0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
}

func u32(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
func u64(b []byte) uint64 { return binary.LittleEndian.Uint64(b) }

func fold(a, b uint64) uint64 {
	high, low := bits.Mul64(a, b)
	return high ^ low
}

func avalanche(h uint64) uint64 {
	h = (h ^ h>>37) * prime3
	return h ^ h>>32
}

func mix16(b, key []byte, seed uint64) uint64 {
	return fold(u64(b)^(u64(key)+seed), u64(b[8:])^(u64(key[8:])-seed))
}

// hashLong hashes more than 240 bytes.
func hashLong(b []byte, seed uint64) uint64 {
	var key [len(secret)]byte
	for i := 0; i < len(key); i += 16 {
		binary.LittleEndian.PutUint64(key[i:], u64(secret[i:])+seed)
		binary.LittleEndian.PutUint64(key[i+8:], u64(secret[i+8:])-seed)
	}
	acc := [8]uint64{prime32x3, prime1, prime2, prime3, prime4, prime32x2, prime5, prime32x1}
	add := func(data, key []byte) {
		for i := range acc {
			value := u64(data[8*i:])
			keyed := value ^ u64(key[8*i:])
			acc[i] += value + keyed&0xFFFFFFFF*(keyed>>32)
		}
	}
	for at := 0; at+stripe <= len(b); at += stripe {
		add(b[at:], key[at%blockBytes/8:])
		if (at+stripe)%blockBytes == 0 {
			for i := range acc {
				acc[i] = (acc[i] ^ acc[i]>>47 ^ u64(key[len(key)-stripe+8*i:])) * prime32x1
			}
		}
	}
	if len(b)%stripe != 0 {
		add(b[len(b)-stripe:], key[len(key)-stripe-7:])
	}
	h := uint64(len(b)) * prime1
	for i := 0; i < 8; i += 2 {
		h += fold(acc[i]^u64(key[11+8*i:]), acc[i+1]^u64(key[11+8*i+8:]))
	}
	return avalanche(h)
}
