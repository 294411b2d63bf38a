// Package ucmkeys has what the store and the doctor both have to know of the numbers in
// UCM's configuration: what each may be, and how sizes are written.
package ucmkeys

import (
	"fmt"
	"math"
	"strconv"
	"strings"
)

// A Range is what the number of a key may be.
type Range struct{ Least, Most int64 }

// Has reports whether a number is in the range.
func (r Range) Has(n int64) bool { return n >= r.Least && n <= r.Most }

const (
	// MostStreams is the largest stream_number, MostRingEntries the largest ior_entries.
	MostStreams     = 1024
	MostRingEntries = 4096

	// MostTimeoutMs is 30 days.
	MostTimeoutMs = 30 * 24 * 3600 * 1000

	mostQueued = 1 << 30
	mostGB     = 1 << 20 // a PiB
)

// ranges are by key. Where UCM refuses a number, so do they: queues of fewer than 2, more
// than 32 streams of Cache.
var ranges = map[string]Range{
	"timeout_ms":                   {1, MostTimeoutMs},
	"stream_number":                {1, MostStreams},
	"waiting_queue_depth":          {2, mostQueued},
	"running_queue_depth":          {2, mostQueued},
	"ior_entries":                  {1, MostRingEntries},
	"ior_depth":                    {-MostRingEntries, MostRingEntries},
	"numa_id":                      {-1, 1023},
	"cache_buffer_capacity_gb":     {0, mostGB}, // 0: the default
	"cache_stream_number":          {1, 32},
	"posix_data_trans_concurrency": {1, 4096},
	"data_dir_shard_bytes":         {0, 5},
	"posix_capacity_gb":            {0, mostQueued}, // 0: no limit
	"buffer_size":                  {1, math.MaxInt64},
}

// RangeOf returns the range of a key of UCM's.
func RangeOf(key string) (r Range, known bool) {
	r, known = ranges[key]
	return r, known
}

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
