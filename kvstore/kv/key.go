package kv

import (
	"encoding/hex"
	"fmt"
)

// Key names a block: 128 bits that stand for its tokens, for every token before
// them, and for whatever else decides its bytes. Package keys makes them; UCM's
// block ids are keys as they are.
type Key [16]byte

// String is the key in 32 hexadecimal digits, as UCM names files.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads 32 hexadecimal digits.
func ParseKey(s string) (Key, error) {
	var k Key
	if len(s) != 2*len(k) {
		return k, fmt.Errorf("kvstore: key %.40q has %d characters; 32 hexadecimal digits are a key", s, len(s))
	}
	if _, err := hex.Decode(k[:], []byte(s)); err != nil {
		return Key{}, fmt.Errorf("kvstore: key %q: %w", s, err)
	}
	return k, nil
}

// Fingerprint stands for everything outside the tokens that changes the bytes of
// a block: see keys.Namespace. A store belongs to one and returns no block of
// another.
type Fingerprint [16]byte

// String is the fingerprint in 32 hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }
