package measure

import (
	"fmt"
	"slices"

	"github.com/dustin/go-humanize"
)

// Spread summarises measurements in three numbers.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// SpreadOf returns the Spread of values; without values it is zero.
func SpreadOf(values []float64) Spread {
	if len(values) == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	mid := len(v) / 2
	median := v[mid]
	if len(v)%2 == 0 {
		median = (v[mid-1] + v[mid]) / 2
	}
	return Spread{median, v[0], v[len(v)-1]}
}

// Text formats s as "median (min-max)".
func (s Spread) Text(digits int) string {
	return fmt.Sprintf("%.*f (%.*f-%.*f)", digits, s.Median, digits, s.Min, digits, s.Max)
}

// SizeText formats a number of bytes, such as 4.0 KiB. Negative numbers count as 0.
func SizeText(bytes int64) string { return humanize.IBytesN(uint64(max(0, bytes)), 3) }
