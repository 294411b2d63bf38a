package etcdlog

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// chain is a SHA-256 over a batch, which contains the chain of the batch before it. So two
// logs that have equal chains at an index are equal up to there.
type chain [sha256.Size]byte

func (c chain) String() string { return hex.EncodeToString(c[:]) }

// MarshalText and UnmarshalText make a chain readable in JSON.
func (c chain) MarshalText() ([]byte, error) { return []byte(c.String()), nil }

func (c *chain) UnmarshalText(text []byte) error {
	if len(text) != 2*len(c) {
		return fmt.Errorf("a hash of %d digits; want %d", len(text), 2*len(c))
	}
	_, err := hex.Decode(c[:], text)
	return err
}
