// Package lmcachekeys has what the store and the doctor both have to know of the numbers and
// flags in LMCache's configuration: what each may be, and in which forms.
package lmcachekeys

import (
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/internal/pyyaml"
	"github.com/kv3fs/kv3fs/internal/ucmkeys"
)

const (
	gib = 1 << 30

	mostThreads = 1024
	mostCount   = 1 << 20
)

// number is what the number of a key may be. LMCache calls Python's int for keys outside
// extra_config and for those of its connector, which converts text; others are used as they
// are.
type number struct {
	least, most int64
	converts    bool
}

// numbers are by key; no two parts of LMCache's configuration have the same key. Where LMCache
// has a range, it is this one; elsewhere it is far above what is sensible.
var numbers = map[string]number{
	"chunk_size":            {1, mostCount, true},
	"blocking_timeout_secs": {1, ucmkeys.MostTimeoutMs / 1000, true},
	"gds_buffer_size":       {1, mostCount, true}, // MiB
	"cufile_buffer_size":    {1, mostCount, true},

	"hf3fs_iov_size":               {100 << 20, 2 * gib, true},
	"hf3fs_ior_entries":            {128, 1024, true},
	"hf3fs_io_depth":               {-128, 128, true},
	"hf3fs_numa_id":                {-1, 1023, true},
	"hf3fs_io_thread_num":          {2, 16, true},
	"fs_connector_read_ahead_size": {1, math.MaxInt64, false},
	"disk_io_threads":              {1, mostThreads, false},
	"gds_io_threads":               {1, mostThreads, false},
	"max_alloc_attempts":           {1, math.MaxInt32, false},

	// Of the L2 adapters.
	"num_workers":              {1, mostThreads, false},
	"iov_size":                 {100 << 20, 2 * gib, false},
	"ior_entries":              {128, 1024, false},
	"io_depth":                 {-128, 128, false},
	"numa_id":                  {-1, 1023, false},
	"read_ahead_size":          {1, math.MaxInt64, false},
	"read_io_depth":            {0, math.MaxInt64, false},
	"read_max_bytes_in_flight": {0, math.MaxInt64, false},
	"hash_subdir_levels":       {0, lmcache.MostSubdirs, false},
}

// fraction is what a number that need not be whole may be, from 0 on.
type fraction struct {
	most     float64
	converts bool
}

// fractions are by key.
var fractions = map[string]fraction{
	"max_local_cpu_size":            {math.MaxFloat64, true},
	"allocation_attempt_delay_secs": {math.MaxFloat64, false},
	"max_capacity_gb":               {math.MaxFloat64, false},
	"disk_min_free_gb":              {math.MaxFloat64, false},
	"disk_high_watermark":           {1, false},
}

// flags are by key.
var flags = map[string]form{
	"local_cpu": converted, "use_layerwise": converted, "save_unfull_chunk": converted, "use_gds": converted,
	"save_chunk_meta": asItIs, "fs_connector_use_odirect": asItIs, "use_direct_io": asItIs,
	"use_cufile":        converted,
	"enable_key_buffer": boolean, "use_odirect": boolean, "recover_on_start": boolean,
}

// form is what LMCache takes for a flag.
type form int

const (
	boolean   form = iota // nothing but true and false
	converted             // also their text, and 1 and 0
	asItIs                // whatever Python takes for true: any text
)

// RangeOf returns the range of the number of a key.
func RangeOf(key string) (least, most int64, known bool) {
	n, known := numbers[key]
	return n.least, n.most, known
}

// Check checks the value of any key. Of one that is not known here, it refuses nothing.
func Check(key string, value any) *pyyaml.Refusal {
	if _, known := numbers[key]; known {
		_, refused := Number(key, value)
		return refused
	}
	if _, known := flags[key]; known {
		_, refused := Flag(key, value)
		return refused
	}
	if limits, known := fractions[key]; known {
		return limits.check(value)
	}
	return nil
}

func (f fraction) check(value any) *pyyaml.Refusal {
	var n float64
	ok := true
	switch v := value.(type) {
	case string:
		var err error
		n, err = strconv.ParseFloat(strings.TrimSpace(v), 64)
		ok = f.converts && err == nil
	case float64:
		n = v
	case int64:
		n = float64(v)
	case uint64:
		n = float64(v)
	case json.Number:
		var err error
		n, err = v.Float64()
		ok = err == nil
	default:
		ok = false
	}
	if ok && n >= 0 && n <= f.most {
		return nil
	}
	fix := "write a number that is not negative"
	if f.most < math.MaxFloat64 {
		fix = fmt.Sprintf("write a number, 0 to %v", f.most)
	}
	return &pyyaml.Refusal{What: "is " + pyyaml.Describe(value), Fix: fix}
}

// Number returns the whole number of a key. The value is one that YAML or JSON decodes to. A
// fraction is refused, although LMCache cuts it off where it converts.
func Number(key string, value any) (int64, *pyyaml.Refusal) {
	limits := numbers[key]
	fix := fmt.Sprintf("write a whole number, %d to %d", limits.least, limits.most)
	text, isText := value.(string)
	n, ok := pyyaml.Whole(value)
	if isText && limits.converts {
		var err error
		n, err = strconv.ParseInt(strings.TrimSpace(text), 10, 64)
		ok = err == nil
	}
	switch {
	case !ok && isText && !limits.converts:
		return 0, &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", which LMCache does not convert", Fix: fix + ", without quotes"}
	case !ok:
		return 0, &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", not a whole number", Fix: fix}
	case n < limits.least || n > limits.most:
		return 0, &pyyaml.Refusal{What: fmt.Sprintf("is %d", n), Fix: fix}
	}
	return n, nil
}

// Flag returns the flag of a key.
func Flag(key string, value any) (bool, *pyyaml.Refusal) {
	if is, ok := value.(bool); ok {
		return is, nil
	}
	const fix = "write true or false, without quotes"
	takes := flags[key]
	if n, ok := pyyaml.Whole(value); ok && takes != boolean && (n == 0 || n == 1) {
		return n == 1, nil
	}
	text, isText := value.(string)
	switch {
	case isText && takes == converted:
		switch strings.ToLower(strings.TrimSpace(text)) {
		case "true", "1":
			return true, nil
		case "false", "0":
			return false, nil
		}
		return false, &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", which LMCache takes for false", Fix: fix}
	case isText && takes == asItIs:
		return false, &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", and LMCache takes any text for true", Fix: fix}
	}
	return false, &pyyaml.Refusal{What: "is " + pyyaml.Describe(value) + ", not true or false", Fix: fix}
}

// Keys returns the keys that are known here.
func Keys() []string {
	return slices.Concat(slices.Collect(maps.Keys(numbers)), slices.Collect(maps.Keys(flags)), slices.Collect(maps.Keys(fractions)))
}
