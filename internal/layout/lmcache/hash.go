package lmcache

import (
	"encoding/hex"
	"math/big"
	"strconv"
	"strings"
)

// A hash is in the names of files as lower-case hexadecimal digits: a number without leading
// zeros, and with a minus sign where Python's builtin hash is negative, or the bytes of a
// digest.

// DigestDigits is how many digits a whole SHA-256 has.
const DigestDigits = 64

// IsHash reports whether a text is a hash.
func IsHash(s string) bool {
	digits := strings.TrimPrefix(s, "-")
	if len(digits) > DigestDigits || !isHex(digits) {
		return false
	}
	return digits[0] != '0' || s == "0" || len(s)%2 == 0 && len(digits) == len(s)
}

// HashOf returns the text of a number.
func HashOf(n int64) string { return strconv.FormatInt(n, 16) }

// HashOfUnsigned is HashOf for the numbers that newer builds make of SHA-256.
func HashOfUnsigned(n uint64) string { return strconv.FormatUint(n, 16) }

// HashNumber returns the number of 64 bits that a hash is, its sign apart.
func HashNumber(s string) (size uint64, negative, ok bool) {
	digits, negative := strings.CutPrefix(s, "-")
	size, err := strconv.ParseUint(digits, 16, 64)
	if err != nil || strconv.FormatUint(size, 16) != digits {
		return 0, false, false
	}
	if negative && (size == 0 || size > 1<<63) {
		return 0, false, false
	}
	return size, negative, true
}

// HashDigest returns the bytes of a hash that is a whole digest.
func HashDigest(s string) ([]byte, bool) {
	raw, err := hex.DecodeString(s)
	return raw, err == nil && len(s) == DigestDigits && strings.ToLower(s) == s
}

// BasePath returns in which of so many base paths a connector has the chunk with a hash: its
// absolute value modulo their number.
func BasePath(hash string, paths int) int {
	size, ok := new(big.Int).SetString(strings.TrimPrefix(hash, "-"), 16)
	if !ok {
		return 0
	}
	return int(size.Mod(size, big.NewInt(int64(paths))).Int64())
}

// ObjectBasePath is BasePath for an object: the last 16 digits of the hash modulo the number
// of paths.
func ObjectBasePath(hash string, paths int) int {
	return BasePath(hash[max(0, len(hash)-16):], paths)
}
