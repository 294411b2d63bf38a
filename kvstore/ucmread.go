package kvstore

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/kv3fs/kv3fs/internal/spelling"
	"github.com/kv3fs/kv3fs/internal/ucmkeys"
)

// ReadConfig reads a chain's configuration, or that of an engine:
//
//   - YAML with the keys of UCMConfig, or a file of UCM's, which has them below ucm_connectors.
//   - A file of LMCache's that names its GDS backend, its 3FS connector or its FS connector; or
//     the JSON of an adapter of LMCache's server, hf3fs, fs or fs_native. It sets
//     StorePipeline, Namespace.BlockTokens, and Gds or LMCache; the model and BlockSize are still
//     to be set, and for an adapter KVRank and IDs. Of a file with a GDS backend and a
//     connector the backend is opened, which LMCache asks first.
//   - KVCM's JSON, as [ReadKVCM] reads it. It sets StorePipeline and Kvcm; the namespace,
//     BlockSize and Kvcm.Spec are still to be set, and Kvcm.Instance where it has none.
//   - RTP-LLM's environment, a variable a line, or the command or script that starts it. It sets
//     StorePipeline, Namespace.TPSize where TP_SIZE is given, and RtpLlm or Kvcm, of the tier that is on; see
//     [ReadRTPLLM]. Nothing in it is run or expanded.
//
// A key that is unknown, or that would not do what it says, is an error, and so is a value that
// is missing or out of its range; errors name the line or the key. Keys that have no effect
// here are in notes, a sentence for each.
func ReadConfig(src []byte) (c UCMConfig, notes []string, err error) {
	return new(Registry).ReadConfig(src)
}

func (r *Registry) readConfig(src []byte) (c UCMConfig, notes []string, err error) {
	if err := checkText(src); err != nil {
		return c, nil, err
	}
	switch is, err := isKVCM(src); {
	case err != nil:
		return c, nil, err
	case is:
		return ofKVCM(src)
	case isScript(src):
		return ofRTPLLM(src)
	}
	given, err := parse(src)
	if err != nil {
		return c, nil, err
	}
	if slices.ContainsFunc(given, func(s setting) bool { return s.key == "ucm_connectors" }) {
		if given, notes, err = ofUCM(given); err != nil {
			return c, nil, err
		}
	}
	switch {
	case isL2Adapter(given):
		return ofL2Adapter(given)
	case isGDS(given):
		return ofGDS(given)
	case isLMCache(given):
		return ofLMCache(given)
	}
	slices.SortFunc(given, func(a, b setting) int { return strings.Compare(a.key, b.key) }) // the order of notes
	known := configKeys()
	if len(given) > 0 && !slices.ContainsFunc(given, func(s setting) bool { _, ours := known[s.key]; return ours || foreign[s.key] != "" }) {
		return c, nil, nobodys(given, slices.Collect(maps.Keys(known)))
	}
	var used []string
	for _, s := range given {
		if reason, ok := foreign[s.key]; ok {
			if err := s.checkBy(ucmkeys.Check); err != nil {
				return c, nil, err
			}
			if s.key == "posix_capacity_gb" && readsPosixKeys(given) {
				if n, _ := readValue(s, ucmkeys.Number); n != 0 {
					return c, nil, s.errorf("is %d: %s", n, reason)
				}
			}
			notes = append(notes, s.key+" has no effect here: "+reason)
			continue
		}
		if _, ok := known[s.key]; !ok {
			return c, nil, s.unknown(slices.Collect(maps.Keys(known)))
		}
		used = append(used, s.key)
	}
	if err := decode(given, "yaml", reflect.ValueOf(&c).Elem()); err != nil {
		return c, nil, err
	}
	if c.StorePipeline != "" {
		chain, err := r.parse(c.StorePipeline)
		if err != nil {
			at := slices.IndexFunc(given, func(s setting) bool { return s.key == "store_pipeline" })
			return c, nil, given[at].errorf("is no chain: %w", err)
		}
		if c.IODirect != nil && !*c.IODirect && chain[len(chain)-1] == ds3fsName {
			notes = append(notes, "io_direct: false has no effect here: what goes through a ring never enters the page cache of this mount")
		}
		if c.BufferSize > 0 && (c.CacheBufferCapacityGB > 0 || c.CacheBufferBytes > 0) && chain[0] == cacheName {
			notes = append(notes, "buffer_size has no effect here: the size of the cache is given by its own key")
		}
		for _, key := range used {
			if readers := known[key]; len(readers) > 0 && !slices.ContainsFunc(chain, func(name string) bool { return slices.Contains(readers, name) }) {
				notes = append(notes, fmt.Sprintf("%s has no effect here: only %s reads it, and the chain is %s", key, strings.Join(readers, " and "), c.StorePipeline))
			}
		}
	}
	return c, notes, nil
}

// readsPosixKeys reports whether the chain ends in Posix, or may.
func readsPosixKeys(given []setting) bool {
	at := slices.IndexFunc(given, func(s setting) bool { return s.key == "store_pipeline" })
	if at < 0 {
		return true
	}
	chain, err := readValue(given[at], ucmkeys.Text)
	return err != nil || slices.Contains(splitChain(chain), posixName)
}

// nobodys returns the error about a file that is none of those that ReadConfig reads.
func nobodys(given []setting, known []string) error {
	for _, s := range given {
		switch {
		case slices.Contains(kvcmMarks, s.key):
			return s.errorf("is a key of KVCM's, whose files are JSON; write JSON")
		case marksRTPLLM(s.key):
			return s.errorf("is a variable of RTP-LLM's; write %s=VALUE", s.key)
		}
	}
	return fmt.Errorf("%w; it is neither a file of UCM's, with ucm_connectors, nor one of LMCache's, with extra_config, nor KVCM's JSON, nor RTP-LLM's environment, nor one with kvstore's keys", given[0].unknown(known))
}

// ofUCM returns the keys of the chain in a file of UCM's.
func ofUCM(top []setting) (given []setting, notes []string, err error) {
	for _, s := range top {
		if s.key != "ucm_connectors" {
			if err := s.checkBy(ucmkeys.Check); err != nil {
				return nil, nil, err
			}
			notes = append(notes, s.key+" has no effect here: it is a setting of UCM's connector, not of its stores")
			continue
		}
		list, _ := s.value.(*ast.SequenceNode)
		if list == nil || len(list.Values) != 1 {
			return nil, nil, s.errorf("is not a list of one connector; write exactly one")
		}
		connector, err := mapping(list.Values[0])
		if err != nil {
			return nil, nil, s.errorf("has no UcmPipelineStore: %w", err)
		}
		var name string
		for _, c := range connector {
			switch c.key {
			case "ucm_connector_name":
				name, _ = c.text()
			case "ucm_connector_config":
				if given, err = mapping(c.value); err != nil {
					return nil, nil, c.errorf("%w", err)
				}
			}
		}
		switch {
		case name != "UcmPipelineStore":
			return nil, nil, s.errorf("has a ucm_connector_name of %.60q; only UcmPipelineStore is a chain", name)
		case given == nil:
			return nil, nil, s.errorf("has no ucm_connector_config; write the keys of the chain there")
		}
	}
	slices.Sort(notes)
	return given, notes, nil
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
	"posix_gc_precise_mode":                collects,
	"posix_gc_candidate_extra_percent":     collects,
	"posix_gc_task_timeout_ms":             collects,
	"posix_gc_cross_instance_lock":         collects,
	"posix_gc_heartbeat_interval_sec":      collects,
	"posix_gc_stale_threshold_sec":         collects,
	"cache_load_exclusive_buffer_number":   "loads and saves share the cache",
	"cache_load_backend_only":              "a load takes from Cache what it holds",
}

const collects = "Posix evicts no blocks; use Segment, which enforces its capacity"

// readBy lists the stores that read a key, for keys that not all stores read.
var readBy = map[string][]string{
	"storage_backends":             {"Posix", "Ds3fs", "Segment", "LMCache", "Gds"},
	"io_direct":                    {"Posix", "Ds3fs", "Segment", "Pages", "Gds"},
	"stream_number":                {"Ds3fs", "Segment", "Pages", "LMCache", "Gds"},
	"ior_entries":                  {"Ds3fs", "Pages", "LMCache"},
	"numa_id":                      {"Ds3fs", "Pages", "LMCache"},
	"buffer_size":                  {"Cache", "Ds3fs", "Pages", "LMCache"},
	"open_files":                   {"Ds3fs", "LMCache"},
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
	"segment_dir":                  {"Segment"},
	"segment_waiting_blocks":       {"Segment"},
	"segment_fill_bytes":           {"Segment"},
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
		if key := field.Tag.Get("yaml"); key != "-" {
			keys[key] = readBy[key]
		}
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
