package ucmkeys

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// units are powers of 1024: UCM's keys that end in _gb mean GiB.
var units = map[string]int{"": 0, "b": 0, "k": 1, "kb": 1, "kib": 1, "m": 2, "mb": 2, "mib": 2, "g": 3, "gb": 3, "gib": 3, "t": 4, "tb": 4, "tib": 4}

// ParseBytes reads a size: a whole number of bytes, or one with a unit such as 64GB. GB
// and GiB are the same, 2^30 bytes.
func ParseBytes(text string) (int64, error) {
	digits := len(text) - len(strings.TrimLeft(text, "0123456789"))
	exponent, known := units[strings.ToLower(strings.TrimSpace(text[digits:]))]
	if digits == 0 || !known || digits > 1 && text[0] == '0' {
		return 0, fmt.Errorf("%.40q is no size; write bytes, or a whole number and KB, MB, GB or TB, as 64GB", text)
	}
	n, err := strconv.ParseInt(text[:digits], 10, 64)
	if err != nil || n > math.MaxInt64>>(10*exponent) {
		return 0, fmt.Errorf("%.40q is too large", text)
	}
	return n << (10 * exponent), nil
}
