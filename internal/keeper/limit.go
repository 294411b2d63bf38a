package keeper

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/dustin/go-humanize"
)

// Limit is a number of bytes, or a part of the file system. The zero value is no limit.
type Limit struct {
	Bytes   int64
	Percent float64 // of the file system's size, if Bytes is 0
}

// ParseLimit reads a limit as 10TiB, 5GB, 4096 or 90%.
func ParseLimit(text string) (Limit, error) {
	text = strings.TrimSpace(text)
	if digits, ok := strings.CutSuffix(text, "%"); ok {
		p, err := strconv.ParseFloat(strings.TrimSpace(digits), 64)
		if err != nil || !(p > 0 && p <= 100) {
			return Limit{}, fmt.Errorf("%q is no part of a file system: give a number above 0%% and up to 100%%", text)
		}
		return Limit{Percent: p}, nil
	}
	n, err := humanize.ParseBytes(text)
	switch {
	case err != nil:
		return Limit{}, fmt.Errorf("%q is no size: give one such as 10TiB, or a part of the file system such as 90%%", text)
	case n < leastLimit || n > math.MaxInt64/2:
		return Limit{}, fmt.Errorf("%q is no size for a limit: give at least 1 MiB and less than 4 EiB", text)
	}
	return Limit{Bytes: int64(n)}, nil
}

// leastLimit is the smallest limit: below it, no write of usual size ever finds room.
const leastLimit = 1 << 20

// None reports whether there is no limit.
func (l Limit) None() bool { return l.Bytes == 0 && l.Percent == 0 }

func (l Limit) check() error {
	if l.None() || l.Bytes == 0 && l.Percent > 0 && l.Percent <= 100 || l.Percent == 0 && l.Bytes >= leastLimit && l.Bytes <= math.MaxInt64/2 {
		return nil
	}
	return fmt.Errorf("limit of %d bytes or %g%%: give one of them, at least 1 MiB or above 0%%", l.Bytes, l.Percent)
}

// String returns what ParseLimit reads.
func (l Limit) String() string {
	switch {
	case l.Bytes != 0:
		return strconv.FormatInt(l.Bytes, 10)
	case l.Percent != 0:
		return strconv.FormatFloat(l.Percent, 'g', -1, 64) + "%"
	}
	return "none"
}

// of returns the bytes of a limit on a file system of that size, and what is left of it where
// the limit is more than there is.
func (l Limit) of(totalBytes int64) int64 {
	if l.Bytes != 0 {
		return l.Bytes
	}
	return int64(float64(totalBytes) * l.Percent / 100)
}
