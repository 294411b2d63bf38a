package kvstore

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/kv3fs/kv3fs/internal/spelling"
)

// ReadConfig reads YAML: the keys of UCMConfig, or a file of UCM's, which has them below
// ucm_connectors. A key that is unknown, or that would not do what it says, is an error.
// Keys that have no effect here are in notes, a sentence for each.
func ReadConfig(src []byte) (c UCMConfig, notes []string, err error) {
	values := map[string]any{}
	if err := yaml.Unmarshal(src, &values); err != nil {
		return c, nil, fmt.Errorf("kvstore: configuration: %s", yaml.FormatError(err, false, true))
	}
	if _, ucm := values["ucm_connectors"]; ucm {
		if values, notes, err = ofUCM(values); err != nil {
			return c, nil, err
		}
	}
	known := configKeys()
	for _, key := range slices.Sorted(maps.Keys(values)) {
		if reason, ok := foreign[key]; ok {
			if key == "posix_capacity_gb" && fmt.Sprint(values[key]) != "0" {
				return c, nil, fmt.Errorf("kvstore: configuration: posix_capacity_gb is %v: %s", values[key], reason)
			}
			notes = append(notes, key+" has no effect here: "+reason)
			delete(values, key)
			continue
		}
		if _, ok := known[key]; !ok {
			return c, nil, fmt.Errorf("kvstore: configuration: unknown key %.60q%s", key, didYouMean(key, slices.Collect(maps.Keys(known))))
		}
	}
	again, err := yaml.Marshal(values)
	if err == nil {
		err = yaml.NewDecoder(bytes.NewReader(again), yaml.Strict()).Decode(&c)
	}
	if err != nil {
		return c, nil, fmt.Errorf("kvstore: configuration: %s", yaml.FormatError(err, false, true))
	}
	if c.StorePipeline != "" {
		chain, err := parseChain(c.StorePipeline)
		if err != nil {
			return c, nil, err
		}
		for _, key := range slices.Sorted(maps.Keys(values)) {
			if readers := known[key]; len(readers) > 0 && !slices.ContainsFunc(chain, func(name string) bool { return slices.Contains(readers, name) }) {
				notes = append(notes, fmt.Sprintf("%s has no effect here: only %s reads it, and the chain is %s", key, strings.Join(readers, " and "), c.StorePipeline))
			}
		}
	}
	return c, notes, nil
}

// ofUCM returns the keys of the chain in a file of UCM's.
func ofUCM(top map[string]any) (values map[string]any, notes []string, err error) {
	list, _ := top["ucm_connectors"].([]any)
	if len(list) != 1 {
		return nil, nil, fmt.Errorf("kvstore: configuration: ucm_connectors has %d connectors; write a list of exactly one", len(list))
	}
	connector, _ := list[0].(map[string]any)
	if name := connector["ucm_connector_name"]; name != "UcmPipelineStore" {
		return nil, nil, fmt.Errorf("kvstore: configuration: ucm_connector_name is %v; only UcmPipelineStore is a chain", name)
	}
	values, ok := connector["ucm_connector_config"].(map[string]any)
	if !ok {
		return nil, nil, fmt.Errorf("kvstore: configuration: ucm_connectors[0] has no ucm_connector_config")
	}
	for _, key := range slices.Sorted(maps.Keys(top)) {
		if key != "ucm_connectors" {
			notes = append(notes, key+" has no effect here: it is a setting of UCM's connector, not of its stores")
		}
	}
	return values, notes, nil
}

// foreign has the keys of UCM that have no effect here, each with the reason.
var foreign = map[string]string{
	"device_id":                            "data moves to and from the caller's memory wherever that is",
	"cpu_affinity_cores":                   "the Go runtime places its threads; confine the process instead",
	"store_health":                         "a store that fails returns errors",
	"enable_event_sync":                    "it configures UCM's device streams",
	"ior_depth":                            "requests are submitted as they come",
	"posix_lookup_concurrency":             "lookups adapt to the number of keys",
	"posix_open_concurrency":               "each request opens the file that it needs",
	"posix_commit_concurrency":             "the request that writes the last shard of a block renames its file",
	"posix_capacity_gb":                    "Posix does not enforce a capacity; use Segment, which does, or write 0",
	"posix_gc_enable":                      collects,
	"posix_gc_recycle_percent":             collects,
	"posix_gc_concurrency":                 collects,
	"posix_gc_check_interval_sec":          collects,
	"posix_gc_trigger_threshold_ratio":     collects,
	"posix_gc_max_recycle_count_per_shard": collects,
	"posix_gc_shard_sample_ratio":          collects,
}

const collects = "Posix evicts no blocks; use Segment, which enforces its capacity"

// readBy lists the stores that read a key, for keys that not all stores read.
var readBy = map[string][]string{
	"storage_backends":             {"Posix", "Ds3fs", "Segment"},
	"io_direct":                    {"Posix", "Ds3fs", "Segment", "Pages"},
	"stream_number":                {"Ds3fs", "Segment", "Pages"},
	"ior_entries":                  {"Ds3fs", "Pages"},
	"numa_id":                      {"Ds3fs", "Pages"},
	"buffer_size":                  {"Ds3fs", "Pages"},
	"open_files":                   {"Ds3fs"},
	"cache_buffer_capacity_gb":     {"Cache"},
	"cache_buffer_bytes":           {"Cache"},
	"share_buffer_enable":          {"Cache"},
	"unique_id":                    {"Cache"},
	"cache_stream_number":          {"Cache"},
	"cache_policy":                 {"Cache"},
	"posix_io_engine":              {"Posix"},
	"posix_data_trans_concurrency": {"Posix"},
	"data_dir_shard_bytes":         {"Posix"},
	"segment_capacity_gb":          {"Segment"},
	"segment_capacity_bytes":       {"Segment"},
	"segment_bytes":                {"Segment"},
	"segment_carry_fraction":       {"Segment"},
	"pages_url":                    {"Pages"},
	"pages_file":                   {"Pages"},
	"pages_capacity_gb":            {"Pages"},
	"pages_capacity_bytes":         {"Pages"},
	"pages_lease_ms":               {"Pages"},
	"pages_reserve_ms":             {"Pages"},
	"pages_quarantine_ms":          {"Pages"},
	"pages_rank":                   {"Pages"},
}

// configKeys returns all keys with the stores that read each; none means every store.
func configKeys() map[string][]string {
	keys := map[string][]string{}
	for field := range reflect.TypeFor[UCMConfig]().Fields() {
		key := field.Tag.Get("yaml")
		keys[key] = readBy[key]
	}
	return keys
}

// didYouMean returns the end of an error about an unknown name.
func didYouMean(name string, known []string) string {
	slices.Sort(known)
	if near := spelling.Nearest(name, known, 1); len(near) > 0 {
		return fmt.Sprintf("; did you mean %s?", near[0])
	}
	return ""
}
