package keys

import (
	"encoding/binary"
	"encoding/hex"
	"strconv"
)

// ID is an engine's name of a block. IDs are comparable.
type ID struct {
	raw  [32]byte
	size uint8
	kind idKind
}

type idKind uint8

const (
	digest   idKind = iota // bytes
	signed                 // a number of 64 bits, big-endian two's complement
	unsigned               // a number of 64 bits, big-endian
)

// DigestID returns the id that is a digest of at most 32 bytes.
func DigestID(sum []byte) (ID, bool) {
	if len(sum) > len(ID{}.raw) {
		return ID{}, false
	}
	return digestID(sum), true
}

func digestID(sum []byte) ID {
	id := ID{size: uint8(len(sum))}
	copy(id.raw[:], sum)
	return id
}

func numberID(n uint64, kind idKind) ID {
	id := ID{size: 8, kind: kind}
	binary.BigEndian.PutUint64(id.raw[:], n)
	return id
}

// Bytes returns the id's binary form: a digest, or a number's 8 bytes, big-endian.
func (id ID) Bytes() []byte { return id.raw[:id.size:id.size] }

func (id ID) number() uint64 { return binary.BigEndian.Uint64(id.raw[:]) }

// String returns the id as it appears in the engine's files and services, in hexadecimal
// digits. LMCache writes numbers without leading zeros and with a sign.
func (id ID) String() string {
	switch id.kind {
	case signed:
		return strconv.FormatInt(int64(id.number()), 16)
	case unsigned:
		return strconv.FormatUint(id.number(), 16)
	}
	return hex.EncodeToString(id.Bytes())
}
