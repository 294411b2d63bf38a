package lmcachekeys_test

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/advise/engineconfig"
	"github.com/kv3fs/kv3fs/internal/lmcachekeys"
	"github.com/kv3fs/kv3fs/kvstore"
)

// A part is a place where LMCache has keys. Each file is complete but for the line or member
// with the key.
type part struct {
	engine string
	file   string
	where  string // of the key, as the doctor names it
	keys   []string
}

var parts = map[string]part{
	"outside extra_config": {engineconfig.LMCache, "remote_storage_plugins: [hf3fs.a]\nextra_config: {hf3fs_mount_point: /m, hf3fs_base_path: /m/a}\n%s: %s\n", "",
		[]string{"chunk_size", "blocking_timeout_secs", "local_cpu", "save_unfull_chunk", "max_local_cpu_size"}},
	"extra_config": {engineconfig.LMCache, "remote_storage_plugins: [hf3fs.a]\nextra_config:\n  hf3fs_mount_point: /m\n  hf3fs_base_path: /m/a\n  %s: %s\n", "extra_config.",
		[]string{"hf3fs_iov_size", "hf3fs_ior_entries", "hf3fs_io_depth", "hf3fs_numa_id", "hf3fs_io_thread_num", "save_chunk_meta", "fs_connector_read_ahead_size", "fs_connector_use_odirect"}},
	"GDS, outside extra_config": {engineconfig.LMCacheGDS, "gds_path: /a\n%s: %s\n", "",
		[]string{"chunk_size", "blocking_timeout_secs", "gds_buffer_size", "cufile_buffer_size", "use_gds", "use_layerwise", "local_cpu", "save_unfull_chunk", "max_local_cpu_size"}},
	"GDS, extra_config": {engineconfig.LMCacheGDS, "gds_path: /a\ngds_buffer_size: 8\nextra_config:\n  %s: %s\n", "extra_config.",
		[]string{"use_cufile", "use_direct_io", "disk_io_threads", "gds_io_threads", "max_alloc_attempts", "allocation_attempt_delay_secs"}},
	"hf3fs": {engineconfig.LMCache, `{"type": "hf3fs", "mount_point": "/m", "base_paths": "/m/a", "%s": %s}`, "",
		[]string{"num_workers", "ior_entries", "io_depth", "numa_id", "iov_size", "enable_key_buffer"}},
	"fs": {engineconfig.LMCache, `{"type": "fs", "base_path": "/a", "%s": %s}`, "",
		[]string{"read_ahead_size", "use_odirect", "max_capacity_gb", "recover_on_start"}},
	"fs_native": {engineconfig.LMCache, `{"type": "fs_native", "base_path": "/a", "%s": %s}`, "",
		[]string{"num_workers", "read_ahead_size", "use_odirect", "max_capacity_gb", "read_io_depth", "read_max_bytes_in_flight", "hash_subdir_levels", "disk_high_watermark", "disk_min_free_gb"}},
}

// values are what every key is given, in the forms that both YAML and JSON have.
func values(key string) []string {
	all := []string{
		"0", "1", "-1", "2", "8", "16", "1024", "1048576", "2592000", "9223372036854775807", "9223372036854775808", "1.5", "0.5", "1e3", "1e400",
		`"8"`, `" 8 "`, `"1"`, `"0"`, `"1.5"`, `"08"`, `"8GB"`, `"abc"`, `""`,
		"true", "false", `"true"`, `"True"`, `"false"`, `"yes"`, `"off"`, `"maybe"`, "null", "[1]", `["8"]`, "{}", `{"a": 1}`,
	}
	if least, most, known := lmcachekeys.RangeOf(key); known {
		for _, n := range []int64{least, most} {
			all = append(all, fmt.Sprint(n), fmt.Sprintf("%q", fmt.Sprint(n)))
		}
		if least > math.MinInt64 {
			all = append(all, fmt.Sprint(least-1))
		}
		if most < math.MaxInt64 {
			all = append(all, fmt.Sprint(most+1))
		}
	}
	return all
}

// ofYAML are forms that JSON does not have.
var ofYAML = []string{"yes", "Yes", "on", "ON", "no", "off", "yEs", "True", "FALSE", "abc", "'8'", "'yes'", "0x10", "0o10", "010", "08", "1_000", "1:30", "99999999999999999999", "2026-11-26", "+8", "~", "", ".inf", ".nan", "- 1"}

// ofJSON are forms that are a text, or nothing, in YAML.
var ofJSON = []string{"104e-2", "95e-2", "-1e-3", "Infinity", "-Infinity", "NaN"}

// The store takes a value if, and only if, the doctor finds nothing that fails.
func TestStoreAndDoctorAgree(t *testing.T) {
	tested := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		p := parts[name]
		for _, key := range p.keys {
			tested[key] = true
			all := values(key)
			if strings.HasPrefix(p.file, "{") {
				all = append(all, ofJSON...)
			} else {
				all = append(all, ofYAML...)
			}
			taken := 0
			for _, value := range all {
				store, doctor := verdicts(t, p, key, value)
				if (store == "") != (doctor == "") {
					t.Errorf("%s: %s: %s\n  store:  %s\n  doctor: %s", name, key, value, store, doctor)
				}
				if store == "" {
					taken++
				}
			}
			if taken == 0 || taken == len(all) {
				t.Errorf("%s: %s: %d of %d values are taken", name, key, taken, len(all))
			}
		}
	}
	for _, key := range lmcachekeys.Keys() {
		if !tested[key] {
			t.Errorf("no part has %s", key)
		}
	}
}

// verdicts returns why each of them refuses a value, "" if it does not.
func verdicts(t *testing.T, p part, key, value string) (store, doctor string) {
	t.Helper()
	src := fmt.Appendf(nil, p.file, key, value)
	if _, _, err := kvstore.ReadConfig(src); err != nil {
		store = err.Error()
		if !strings.Contains(store, key) && !unparsed(store) {
			t.Errorf("the store does not name %s: %s: %s", key, value, store)
		}
	}
	c, err := engineconfig.Read(p.engine, "lmcache.yaml", src, engineconfig.Params{}, nil)
	if err != nil {
		return store, err.Error()
	}
	for _, problem := range c.Problems {
		if problem.Severity == engineconfig.Failure && problem.Key == p.where+key {
			doctor = problem.What
		}
	}
	return store, doctor
}

// unparsed reports whether an error is the parser's.
func unparsed(text string) bool {
	return strings.Contains(text, "[1:") || strings.Contains(text, "[3:") || strings.Contains(text, "[4:") || strings.Contains(text, "[5:")
}

// What differs by design: the store opens chunks as they are, whole and of all layers. LMCache
// starts with these, so the doctor finds nothing that fails.
func TestWhereTheyDiffer(t *testing.T) {
	p := parts["outside extra_config"]
	for key, value := range map[string]string{"use_layerwise": "true", "remote_serde": "cachegen"} {
		store, doctor := verdicts(t, p, key, value)
		if store == "" || doctor != "" {
			t.Errorf("%s: %s\n  store:  %s\n  doctor: %s", key, value, store, doctor)
		}
	}
	for key, value := range map[string]string{"use_layerwise": "false", "remote_serde": "naive"} {
		if store, doctor := verdicts(t, p, key, value); store != "" || doctor != "" {
			t.Errorf("%s: %s\n  store:  %s\n  doctor: %s", key, value, store, doctor)
		}
	}
}
