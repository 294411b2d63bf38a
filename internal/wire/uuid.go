package wire

import (
	"crypto/rand"
	"encoding/hex"
)

// UUID is the id of an iov or a ring: 16 bytes in text order (RFC 4122), as in a
// request (3.1).
type UUID [16]byte

// ParseUUID parses the canonical 8-4-4-4-12 form, in either case, and nothing else.
func ParseUUID(s string) (u UUID, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return UUID{}, false
	}
	digits := s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	if _, err := hex.Decode(u[:], []byte(digits)); err != nil {
		return UUID{}, false
	}
	return u, true
}

// NewUUID returns a random (version 4) id.
func NewUUID() UUID {
	var u UUID
	rand.Read(u[:]) // never fails since Go 1.24
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return u
}

// String returns the canonical lower-case form.
func (u UUID) String() string {
	b := make([]byte, 36)
	hex.Encode(b[0:8], u[0:4])
	hex.Encode(b[9:13], u[4:6])
	hex.Encode(b[14:18], u[6:8])
	hex.Encode(b[19:23], u[8:10])
	hex.Encode(b[24:36], u[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b)
}
