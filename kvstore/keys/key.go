package keys

import (
	"encoding/hex"
	"fmt"
)

// Key names a block. Its 128 bits stand for the block's tokens, for every token before
// them, and for whatever else decides its bytes. UCM's block ids are keys as they are.
type Key [16]byte

// String returns the key as 32 hexadecimal digits, the way UCM names files.
func (k Key) String() string { return hex.EncodeToString(k[:]) }

// ParseKey reads 32 hexadecimal digits.
func ParseKey(s string) (Key, error) {
	var k Key
	if len(s) != 2*len(k) {
		return k, fmt.Errorf("kvstore: key %.40q has %d characters; a key is 32 hexadecimal digits", s, len(s))
	}
	if _, err := hex.Decode(k[:], []byte(s)); err != nil {
		return Key{}, fmt.Errorf("kvstore: key %q: %w", s, err)
	}
	return k, nil
}

// Fingerprint stands for everything outside the tokens that changes the bytes of a
// block: see Namespace. A store belongs to one fingerprint and returns no block of
// another.
type Fingerprint [16]byte

// String returns the fingerprint as 32 hexadecimal digits.
func (f Fingerprint) String() string { return hex.EncodeToString(f[:]) }
