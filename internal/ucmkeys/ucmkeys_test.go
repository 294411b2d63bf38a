package ucmkeys

import (
	"math"
	"strings"
	"testing"
)

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]int64{
		"0": 0, "68719476736": 64 << 30, "64GB": 64 << 30, "64 GB": 64 << 30, "64GiB": 64 << 30, "64g": 64 << 30,
		"512MB": 512 << 20, "3k": 3 << 10, "7B": 7, "2TiB": 2 << 40, "9223372036854775807": math.MaxInt64, "8388607TB": 8388607 << 40,
	} {
		if n, err := ParseBytes(text); n != want || err != nil {
			t.Errorf("%q: %d, %v; want %d", text, n, err, want)
		}
	}
	for text, want := range map[string]string{
		"": "is no size", "GB": "is no size", "-1": "is no size", "1.5GB": "is no size", "064": "is no size", "64 parsecs": "is no size",
		"1e9": "is no size", "9223372036854775808": "too large", "8388608TB": "too large",
	} {
		if n, err := ParseBytes(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %d, %v; want %q", text, n, err, want)
		}
	}
}

func FuzzParseBytes(f *testing.F) {
	for _, text := range []string{"64GB", "1 kib", "9223372036854775807", "0x10", "8388608TB"} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := ParseBytes(text)
		if n < 0 || err != nil && n != 0 {
			t.Errorf("%q: %d, %v", text, n, err)
		}
	})
}

func TestRanges(t *testing.T) {
	for key, r := range ranges {
		if got, known := RangeOf(key); !known || got != r || r.Least > r.Most || !r.Has(r.Least) || !r.Has(r.Most) || r.Has(r.Least-1) {
			t.Errorf("%s: %v", key, r)
		}
	}
	for key, want := range map[string]Range{ // what UCM refuses, too
		"waiting_queue_depth": {2, 1 << 30}, "running_queue_depth": {2, 1 << 30}, "cache_stream_number": {1, 32}, "data_dir_shard_bytes": {0, 5},
		"stream_number": {1, 1024}, "timeout_ms": {1, 2592000000},
	} {
		if got, _ := RangeOf(key); got != want {
			t.Errorf("%s: %v, want %v", key, got, want)
		}
	}
	if _, known := RangeOf("storage_backends"); known {
		t.Error("a text has a range")
	}
}
