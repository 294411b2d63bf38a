package keys

import "encoding/binary"

// numberTag begins the keys that stand for a number. A hash begins with it once in 2^56.
const numberTag = "kv3fs#n"

// Uint64Key returns a key that stands for a number, for the files of engines whose ids
// of blocks are numbers of 64 bits: those of LMCache, RTP-LLM and KVCM. The number can
// be read from the key. Such a key depends on tokens alone: the directory or the name of
// the file has to tell models and ranks apart.
//
// It is numberTag, a byte of sign bits, and the number, big-endian.
func Uint64Key(n uint64) Key { return numberKey(0, n) }

// Int64Key is Uint64Key for ids with a sign. The two return the same key for a number
// that both types hold.
func Int64Key(n int64) Key { return numberKey(byte(n>>63), uint64(n)) }

func numberKey(sign byte, n uint64) Key {
	var k Key
	copy(k[:], numberTag)
	k[len(numberTag)] = sign
	binary.BigEndian.PutUint64(k[8:], n)
	return k
}

// Uint64 returns the number that the key stands for, and whether it stands for one that
// is not negative.
func (k Key) Uint64() (uint64, bool) {
	n := binary.BigEndian.Uint64(k[8:])
	return n, k == Uint64Key(n)
}

// Int64 returns the number that the key stands for, and whether it stands for one that
// an int64 holds.
func (k Key) Int64() (int64, bool) {
	n := int64(binary.BigEndian.Uint64(k[8:]))
	return n, k == Int64Key(n)
}

// numberKey returns the key that stands for an id that is a number.
func (id ID) numberKey() Key {
	if id.kind == signed {
		return Int64Key(int64(id.number()))
	}
	return Uint64Key(id.number())
}
