// Package ucmkeys has what the store and the doctor both have to know of the values in UCM's
// configuration: what each may be, in which form, and how sizes are written.
package ucmkeys

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/pyyaml"
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

	mostThreads = 4096
	mostQueued  = 1 << 30
	mostGB      = 1 << 20 // a PiB

	bufferSize = "buffer_size"
)

// ranges are by key. Where UCM refuses a number, so do they: queues of fewer than 2, more
// than 32 streams of Cache.
var ranges = map[string]Range{
	"timeout_ms":                         {1, MostTimeoutMs},
	"stream_number":                      {1, MostStreams},
	"waiting_queue_depth":                {2, mostQueued},
	"running_queue_depth":                {2, mostQueued},
	"ior_entries":                        {1, MostRingEntries},
	"ior_depth":                          {-MostRingEntries, MostRingEntries},
	"numa_id":                            {-1, 1023},
	"device_id":                          {-1, math.MaxInt32},
	"block_size":                         {0, math.MaxInt64}, // 0: UCM computes it
	"shard_size":                         {0, math.MaxInt64},
	"tensor_size":                        {0, math.MaxInt64},
	"cache_buffer_capacity_gb":           {0, mostGB}, // 0: the default
	"cache_stream_number":                {1, 32},
	"cache_load_exclusive_buffer_number": {0, mostQueued},
	bufferSize:                           {1, math.MaxInt64},

	"posix_data_trans_concurrency":         {1, mostThreads},
	"posix_lookup_concurrency":             {1, mostThreads},
	"posix_open_concurrency":               {1, mostThreads},
	"posix_commit_concurrency":             {1, mostThreads},
	"data_dir_shard_bytes":                 {0, 5},
	"posix_capacity_gb":                    {0, mostQueued}, // 0: no limit
	"posix_gc_concurrency":                 {1, mostThreads},
	"posix_gc_check_interval_sec":          {1, MostTimeoutMs / 1000},
	"posix_gc_max_recycle_count_per_shard": {1, math.MaxInt64},
	"posix_gc_task_timeout_ms":             {0, MostTimeoutMs},
	"posix_gc_heartbeat_interval_sec":      {0, MostTimeoutMs / 1000}, // 0: derived
	"posix_gc_stale_threshold_sec":         {0, MostTimeoutMs / 1000},
}

// flags are Booleans.
var flags = []string{
	"io_direct", "share_buffer_enable", "cache_load_backend_only", "enable_event_sync",
	"posix_gc_enable", "posix_gc_precise_mode", "posix_gc_cross_instance_lock",
}

// connectorFlags are outside ucm_connectors.
var connectorFlags = []string{"use_layerwise", "enable_event_sync", "load_only_first_rank", "enable_metrics"}

// fractions are above 0, and at most 1.
var fractions = []string{"posix_gc_recycle_percent", "posix_gc_candidate_extra_percent", "posix_gc_trigger_threshold_ratio", "posix_gc_shard_sample_ratio"}

// texts are by key, with the words that one may be; any text where there are none.
var texts = map[string][]string{
	"store_pipeline": nil, "storage_backends": nil,
	"posix_io_engine": {"psync", "aio"},
}

// lists are of whole numbers.
var lists = []string{"cpu_affinity_cores"}

// RangeOf returns the range of a key of UCM's.
func RangeOf(key string) (r Range, known bool) {
	r, known = ranges[key]
	return r, known
}

// Keys returns the keys of ucm_connector_config that are known here.
func Keys() []string {
	return slices.Concat(slices.Collect(maps.Keys(ranges)), flags, fractions, slices.Collect(maps.Keys(texts)), lists)
}

// ConnectorKeys returns those outside ucm_connectors.
func ConnectorKeys() []string { return slices.Clone(connectorFlags) }

// Known reports whether a key is one of Keys.
func Known(key string) bool { return slices.Contains(Keys(), key) }

// Check checks the value of any key, which is one that package pyyaml decodes. Of a key that
// is not known here, it refuses nothing. UCM converts nothing: a number in quotes, and no
// value at all, are errors there, too.
func Check(key string, value any) *pyyaml.Refusal {
	var refused *pyyaml.Refusal
	if _, known := ranges[key]; known {
		_, refused = Number(key, value)
	} else if _, known := texts[key]; known {
		_, refused = Text(key, value)
	} else if slices.Contains(flags, key) || slices.Contains(connectorFlags, key) {
		_, refused = Flag(key, value)
	} else if slices.Contains(fractions, key) {
		refused = checkFraction(value)
	} else if slices.Contains(lists, key) {
		refused = checkList(value)
	}
	return refused
}

// Number returns the whole number of a key. That of buffer_size may be a text, with a unit.
func Number(key string, value any) (int64, *pyyaml.Refusal) {
	limits := ranges[key]
	fix := fmt.Sprintf("write a whole number, %d to %d", limits.Least, limits.Most)
	n, ok := pyyaml.Whole(value)
	text, isText := value.(string)
	if isText && key == bufferSize {
		var err error
		if n, err = ParseBytes(text); err != nil {
			return 0, &pyyaml.Refusal{What: "is no good: " + err.Error(), Fix: "write bytes, or a size such as 64GB"}
		}
		ok = true
	}
	_, unquoted := strconv.ParseInt(text, 10, 64)
	switch {
	case !ok && isText && unquoted == nil:
		return 0, &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", which UCM does not convert", Fix: fix + ", without quotes"}
	case !ok && beyond(value):
		return 0, &pyyaml.Refusal{What: "is " + pyyaml.Describe(value), Fix: fix}
	case !ok:
		return 0, &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", not a whole number", Fix: fix}
	case !limits.Has(n):
		return 0, &pyyaml.Refusal{What: fmt.Sprintf("is %d", n), Fix: fix}
	}
	return n, nil
}

// beyond reports whether a value is a whole number of more than 63 bits.
func beyond(value any) bool {
	switch value.(type) {
	case uint64, json.Number:
		return true
	}
	return false
}

// Flag returns the Boolean of a key.
func Flag(_ string, value any) (bool, *pyyaml.Refusal) {
	is, ok := value.(bool)
	if !ok {
		return false, &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", not true or false", Fix: "write true or false, without quotes"}
	}
	return is, nil
}

// Text returns the text of a key, which is not empty.
func Text(key string, value any) (string, *pyyaml.Refusal) {
	words := texts[key]
	fix := "write it in quotes"
	if words != nil {
		fix = "write " + strings.Join(words, " or ")
	}
	text, ok := value.(string)
	switch {
	case value == nil || ok && text == "":
		return "", &pyyaml.Refusal{What: "is empty", Fix: "write a value, or remove the line"}
	case !ok:
		return "", &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", not text", Fix: fix}
	case words != nil && !slices.Contains(words, text):
		return "", &pyyaml.Refusal{What: fmt.Sprintf("is %.40q", text), Fix: fix}
	}
	return text, nil
}

func checkFraction(value any) *pyyaml.Refusal {
	const fix = "write a number above 0 and at most 1, with a point, as 0.1"
	f, ok := value.(float64)
	if !ok {
		return &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", not a fraction", Fix: fix}
	}
	if !(f > 0 && f <= 1) {
		return &pyyaml.Refusal{What: fmt.Sprintf("is %v", f), Fix: fix}
	}
	return nil
}

func checkList(value any) *pyyaml.Refusal {
	list, ok := value.([]any)
	for _, item := range list {
		n, whole := pyyaml.Whole(item)
		ok = ok && whole && n >= 0
	}
	if !ok {
		return &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", not a list of processors", Fix: "write their numbers, as [0, 1]"}
	}
	return nil
}
