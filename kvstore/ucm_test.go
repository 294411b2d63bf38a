package kvstore

import (
	"maps"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

var namespace = keys.Namespace{Model: "kv3fs/test", BlockTokens: 16}

func TestParseChain(t *testing.T) {
	for _, chain := range Chains() {
		if names, err := parseChain(chain); err != nil || strings.Join(names, "|") != chain {
			t.Errorf("%s: %v, %v", chain, names, err)
		}
	}
	for chain, want := range map[string]string{
		"":                    "the chains are Cache|Posix",
		"Cache|Ds3fz":         "did you mean Ds3fs?",
		"cache|Posix":         "did you mean Cache?",
		"Cache":               "Cache|Empty",
		"Posix|Cache":         "needs a store behind it",
		"Posix|Ds3fs":         "a chain is one store, or Cache, Segment or both and one store",
		"Segment|Segment":     "a chain is one store, or Cache, Segment or both and one store",
		"Segment|Cache|Posix": "a chain is one store, or Cache, Segment or both and one store",
		"Segment|Empty":       "a chain is one store, or Cache, Segment or both and one store",
		"Cache|Cache|Posix":   "a chain is one store, or Cache, Segment or both and one store",
		"Cache||Posix":        "there is no store",
	} {
		if _, err := parseChain(chain); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", chain, err, want)
		}
	}
}

const ofUCMs = `
ucm_connectors:
  - ucm_connector_name: UcmPipelineStore
    ucm_connector_config:
      store_pipeline: "Cache|Ds3fs"
      storage_backends: /mnt/3fs
      io_direct: true
      stream_number: 32
      timeout_ms: 30000
      ior_entries: 1
      ior_depth: 1
      cache_buffer_capacity_gb: 64
      share_buffer_enable: false
      posix_data_trans_concurrency: 128
      posix_gc_enable: true
use_layerwise: true
`

func TestReadConfigOfUCM(t *testing.T) {
	c, notes, err := ReadConfig([]byte(ofUCMs))
	if err != nil {
		t.Fatal(err)
	}
	if c.StorePipeline != "Cache|Ds3fs" || c.StorageBackends != "/mnt/3fs" || !*c.IODirect || c.StreamNumber != 32 || c.CacheBufferCapacityGB != 64 {
		t.Errorf("%+v", c)
	}
	all := strings.Join(notes, "\n")
	for _, key := range []string{"use_layerwise", "ior_depth", "posix_gc_enable", "posix_data_trans_concurrency has no effect here: only Posix reads it"} {
		if !strings.Contains(all, key) {
			t.Errorf("no note about %s in:\n%s", key, all)
		}
	}
	if len(notes) != 4 {
		t.Errorf("%d notes:\n%s", len(notes), all)
	}
}

func TestReadConfig(t *testing.T) {
	c, notes, err := ReadConfig([]byte(`
store_pipeline: Cache|Segment
namespace: {model: Qwen/QwQ-32B, block_tokens: 128, layers: 64, tp_size: 2, tp_rank: 1}
block_size: 16777216
shard_size: 262144
storage_backends: /var/lib/kv
segment_capacity_gb: 500
checksums: require
`))
	if err != nil || len(notes) != 0 {
		t.Fatal(err, notes)
	}
	want := keys.Namespace{Model: "Qwen/QwQ-32B", BlockTokens: 128, Layers: 64, TPSize: 2, TPRank: 1}
	if c.Namespace != want || c.BlockSize != 16<<20 || c.ShardSize != 256<<10 || c.SegmentCapacityGB != 500 || c.Checksums != ChecksumsRequire {
		t.Errorf("%+v", c)
	}
	for src, want := range map[string]string{
		"store_pipline: Posix":          "did you mean store_pipeline?",
		"block_size: many":              "many",
		"posix_capacity_gb: 100":        "use Segment, which does",
		"namespace: {modell: x}":        "modell",
		"ucm_connectors: []":            "exactly one",
		"ucm_connectors: [{}]":          "UcmPipelineStore",
		"a: b: c":                       "configuration",
		"store_pipeline: Cache|Nothing": "there is no store",
		"block_size: 1\nblock_size: 2":  "block_size",
		"ucm_connectors: [{ucm_connector_name: UcmPipelineStore}]": "no ucm_connector_config",
	} {
		if _, _, err := ReadConfig([]byte(src)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", src, err, want)
		}
	}
	for _, src := range []string{"posix_capacity_gb: 0", "store_pipeline: Cache|Ds3fs\nposix_capacity_gb: 100"} {
		if _, notes, err := ReadConfig([]byte(src)); err != nil || len(notes) != 1 {
			t.Errorf("%s: %q, %v", src, notes, err)
		}
	}
}

// A value that would not be what was written is refused, with its line.
func TestReadConfigRefusesValues(t *testing.T) {
	for src, want := range map[string]string{
		"block_size: 1\ntimeout_ms: 9223372036854775807":     "line 2: timeout_ms is 9223372036854775807; write a whole number, 1 to 2592000000",
		"timeout_ms: 9223372036854775808":                    "line 1: timeout_ms is 9223372036854775808; write a whole number, 1 to",
		"waiting_queue_depth: 9223372036854775807":           "line 1: waiting_queue_depth is 9223372036854775807; write a whole number, 2 to",
		"cache_buffer_capacity_gb: 17179869184":              "line 1: cache_buffer_capacity_gb is 17179869184; write a whole number, 0 to 1048576",
		"stream_number: 1000000":                             "line 1: stream_number is 1000000; write a whole number, 1 to 1024",
		"stream_number: -1":                                  "line 1: stream_number is -1; write a whole number, 1 to 1024",
		"numa_id: -2":                                        "numa_id is -2; write a whole number, -1 to",
		"stream_number: 0":                                   "stream_number is 0; write a whole number, 1 to",
		"running_queue_depth: 1":                             "running_queue_depth is 1; write a whole number, 2 to",
		"buffer_size: 64 parsecs":                            `line 1: buffer_size is no good: "64 parsecs" is no size`,
		"buffer_size: 0":                                     "buffer_size is 0; write a whole number, 1 to",
		"stream_number: 0o10":                                `stream_number is the text "0o10", not a whole number`,
		"stream_number: 1.5":                                 "write a whole number",
		"stream_number: [1]":                                 "is a list, not a whole number",
		"stream_number: {a: 1}":                              "is a mapping, not a whole number",
		"storage_backends:":                                  "line 1: storage_backends is empty",
		"storage_backends: null":                             "is empty",
		"storage_backends: ''":                               "is empty",
		"timeout_ms: ''":                                     "not a whole number",
		"timeout_ms: '30000'":                                `is the text "30000", which UCM does not convert; write a whole number, 1 to 2592000000, without quotes`,
		"open_files: 010":                                    "write a whole number",
		"open_files: [1]":                                    "must be one value",
		"pages_file:":                                        "line 1: pages_file has no value",
		"store_pipeline: Posix\nposix_capacity_gb: 1":        "use Segment, which does",
		"store_pipeline: Cache|Ds3fs\nposix_capacity_gb: -1": "write a whole number, 0 to",
		"pages_lease_ms: 9223372036854775808":                "it must be from 0 to",
		"io_direct: 2":                                       "write true or false",
		"segment_carry_fraction: .nan":                       "write a number",
		"checksums: of":                                      `line 1: checksums is "of"; write auto or require or off; did you mean off?`,
		"cache_policy: lfu":                                  "write lru or aged",
		"namespace: {model: m}\nnamespace: {model: n}":       "already defined",
		"namespace:\n  model: m\n  laiers: 3":                `line 3: unknown key "laiers"; did you mean layers?`,
		"namespace: m":                                       "write keys and values",
		"namespace: {layers: -1}":                            "layers is -1",
		"a: &a 1":                                            "alias",
		"store_pipeline: Posix\n---\nstore_pipeline: Posix":  "line 3: a second YAML document",
		"block_size: 1\nstore_pipeline: Posit":               "line 2: store_pipeline is no chain",
		"- 1":                                                "write keys and values",
		strings.Repeat("[", 1000):                            "nested too deeply",
	} {
		_, _, err := ReadConfig([]byte(src))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v; want %q", src, err, want)
		}
	}
}

// Texts keep their spelling, whatever YAML takes them for.
func TestReadConfigKeepsSpelling(t *testing.T) {
	for _, text := range []string{"010", "1e3", "off", "0x10", "1_000", "2026-11-23", "~x", "No"} {
		c, _, err := ReadConfig([]byte("unique_id: " + text + "\nnamespace: {model: " + text + "}"))
		if err != nil || c.UniqueID != text || c.Namespace.Model != text {
			t.Errorf("%s: %q, model %q, %v", text, c.UniqueID, c.Namespace.Model, err)
		}
	}
	c, _, err := ReadConfig([]byte("checksums: off\nshare_buffer_enable: on\nio_direct: no"))
	if err != nil || c.Checksums != ChecksumsOff || !c.ShareBufferEnable || *c.IODirect {
		t.Errorf("%+v, %v", c, err)
	}
	for _, empty := range []string{"", "\n\n", "# nothing\n", "---\n"} {
		if c, _, err := ReadConfig([]byte(empty)); err != nil || c != (UCMConfig{}) {
			t.Errorf("%q: %+v, %v", empty, c, err)
		}
	}
}

// What is read is refused with a reason, or makes a Config for each chain.
func FuzzReadConfig(f *testing.F) {
	f.Add([]byte(ofUCMs))
	f.Add([]byte("block_size: 1"))
	for _, src := range engineFiles() {
		f.Add([]byte(src))
	}
	f.Fuzz(func(t *testing.T, src []byte) {
		c, _, err := ReadConfig(src)
		if err != nil {
			if len(err.Error()) < len("kvstore: configuration: ")+5 {
				t.Errorf("%q", err)
			}
			return
		}
		for _, chain := range Chains() {
			checkCompletes(t, chain, c)
		}
	})
}

// Numbers of any size, of the keys and of the stores' options, are refused, or are such that the
// stores can compute with them.
func FuzzConfig(f *testing.F) {
	node, layer, worker := 0, 1, 0
	rings := RingOptions{NUMANode: &node}
	files := EngineFileOptions{RingOptions: rings}
	from := []UCMConfig{
		{StorageBackends: "/nowhere", PagesFile: "/nowhere/pages"},
		{LMCache: &LMCacheOptions{BasePaths: []string{"/nowhere"}, WorkerID: &worker, Layer: &layer, RingOptions: rings,
			Header: &LMCacheHeader{Tensors: []LMCacheTensor{{DType: "half", Shape: []int{2, 4, 16, 8}}}}}},
		{LMCache: &LMCacheOptions{BasePaths: []string{"/nowhere"}, Objects: &LMCacheObjects{}, IDs: keys.NewIDs(namespace, 1)}},
		{Gds: &GdsOptions{Dirs: []string{"/nowhere"}, Layer: &layer, Shape: []int64{16, 2, 8}, Tensors: []LMCacheTensor{{DType: "half", Shape: []int{8, 16}}}}},
		{RtpLlm: &RtpLlmOptions{Root: "/nowhere", Biz: "b", Checkpoint: "/c", EngineFileOptions: files}},
		{Kvcm: &KvcmOptions{Root: "/nowhere", Instance: "i", Spec: "tp0_F0", EngineFileOptions: files}},
	}
	for _, src := range engineFiles() {
		if c, _, err := ReadConfig([]byte(src)); err == nil {
			from = append(from, c)
		}
	}
	for i := range from {
		from[i].Namespace, from[i].BlockSize = namespace, 4096
		leaves := len(numbersOf(copyOf(reflect.ValueOf(from[i]))))
		for _, n := range []int64{0, 1, -1, math.MaxInt64, math.MinInt64, 1 << 30, 1<<30 + 1, 1 << 34} {
			for leaf := range leaves {
				f.Add(uint(i), uint(leaf), n)
			}
		}
	}
	f.Fuzz(func(t *testing.T, file, leaf uint, n int64) {
		whole := copyOf(reflect.ValueOf(from[file%uint(len(from))]))
		leaves := numbersOf(whole)
		to := leaves[leaf%uint(len(leaves))].value
		switch {
		case to.CanInt():
			to.SetInt(n)
		case to.CanUint():
			to.SetUint(uint64(n))
		default:
			to.SetFloat(math.Float64frombits(uint64(n)))
		}
		for _, chain := range Chains() {
			checkCompletes(t, chain, whole.Interface().(UCMConfig))
		}
	})
}

// copyOf returns a copy of a configuration that shares no memory with it. What knows ids stays
// as it is.
func copyOf(from reflect.Value) reflect.Value {
	to := reflect.New(from.Type()).Elem()
	to.Set(from)
	switch from.Kind() {
	case reflect.Struct:
		for i := range from.NumField() {
			to.Field(i).Set(copyOf(from.Field(i)))
		}
	case reflect.Pointer:
		if !from.IsNil() {
			to.Set(reflect.New(from.Type().Elem()))
			to.Elem().Set(copyOf(from.Elem()))
		}
	case reflect.Slice:
		to.Set(reflect.MakeSlice(from.Type(), from.Len(), from.Len()))
		for i := range from.Len() {
			to.Index(i).Set(copyOf(from.Index(i)))
		}
	}
	return to
}

// leaf is a number in a configuration.
type leaf struct {
	path  string
	value reflect.Value
}

// numbersOf returns the numbers of a configuration, in the order of its fields.
func numbersOf(v reflect.Value) (all []leaf) {
	below := func(name string, v reflect.Value) {
		for _, in := range numbersOf(v) {
			all = append(all, leaf{name + in.path, in.value})
		}
	}
	switch {
	case v.CanInt(), v.CanUint(), v.CanFloat():
		return []leaf{{"", v}}
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			below("."+v.Type().Field(i).Name, v.Field(i))
		}
	case v.Kind() == reflect.Pointer && !v.IsNil():
		below("", v.Elem())
	case v.Kind() == reflect.Slice:
		for i := range v.Len() {
			below("[]", v.Index(i))
		}
	}
	return all
}

// checkedLater are the numbers that a store checks when it opens, each with what it means.
var checkedLater = []string{".Header", ".Objects", ".Tensors", ".Shape", ".Layer", ".WorkerID"}

// checkOptions checks the numbers of the options of a store that opens engines' files.
func checkOptions(t *testing.T, chain string, options any) {
	t.Helper()
	for _, n := range numbersOf(reflect.ValueOf(options)) {
		later := slices.ContainsFunc(checkedLater, func(part string) bool { return strings.HasPrefix(n.path, part) })
		switch {
		case later:
		case n.value.Kind() == reflect.Int && (n.value.Int() < 0 || n.value.Int() > mostOf), n.value.CanInt() && n.value.Int() < 0:
			t.Errorf("%s: %T%s is %d", chain, options, n.path, n.value.Int())
		}
	}
}

// checkCompletes checks that nothing has overflowed in a configuration that is taken.
func checkCompletes(t *testing.T, chain string, from UCMConfig) {
	t.Helper()
	c, err := from.Config(chain)
	if err != nil {
		return
	}
	names, err := parseChain(chain)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.complete(names); err != nil {
		return
	}
	if c.Timeout <= 0 || c.Timeout > mostTimeout || from.TimeoutMs > 0 && c.Timeout != time.Duration(from.TimeoutMs)*time.Millisecond {
		t.Errorf("%s: timeout_ms %d is %v", chain, from.TimeoutMs, c.Timeout)
	}
	for _, size := range []struct{ gb, bytes int64 }{
		{int64(from.CacheBufferCapacityGB), deref(c.Cache).CapacityBytes},
		{int64(from.SegmentCapacityGB), deref(c.Segment).CapacityBytes},
		{int64(from.PagesCapacityGB), deref(c.Pages).CapacityBytes},
	} {
		if size.bytes < 0 || size.gb > 0 && size.bytes > 0 && size.bytes>>30 != size.gb {
			t.Errorf("%s: %d GiB are %d bytes", chain, size.gb, size.bytes)
		}
	}
	for _, options := range []any{c.LMCache, c.Gds, c.RtpLlm, c.Kvcm} {
		checkOptions(t, chain, options)
	}
	if o := c.LMCache; o != nil && len(o.BasePaths) > 0 {
		name, _, err := o.names(c.Namespace)
		if err == nil && name != nil && !o.NoChunkMeta {
			if h, err := o.header(c, name.DType); err == nil && h.PayloadBytes != c.Layout.BlockBytes {
				t.Errorf("%s: a header of %d bytes", chain, h.PayloadBytes)
			}
		}
	}
}

func deref[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

// Every key is in the documentation.
func TestConfigIsDocumented(t *testing.T) {
	page, err := os.ReadFile("../docs/kvstore.md")
	if err != nil {
		t.Fatal(err)
	}
	described := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| (`[a-z_`, ]+`) \\|").FindAllSubmatch(page, -1) {
		for _, key := range regexp.MustCompile("[a-z_]+").FindAllString(string(m[1]), -1) {
			described[key] = true
		}
	}
	known := configKeys()
	for key := range known {
		if !described[key] {
			t.Errorf("%s is not in the table", key)
		}
	}
	for key := range described {
		if _, ok := known[key]; !ok {
			t.Errorf("%s is in the table and is no key", key)
		}
	}
	for key := range readBy {
		if _, ok := known[key]; !ok {
			t.Errorf("%s has readers and is no key", key)
		}
	}
	if len(known) < 30 || len(slices.Collect(maps.Keys(described))) < 30 {
		t.Error("the table was not found")
	}
}

func TestOpenRefuses(t *testing.T) {
	good := UCMConfig{Namespace: namespace, BlockSize: 4096, StorageBackends: t.TempDir(), SegmentCapacityBytes: 1 << 20}
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		chain  string
		change func(c *UCMConfig)
		want   string
	}{
		"no model":          {"Empty", func(c *UCMConfig) { c.Namespace.Model = "" }, "model"},
		"no block size":     {"Empty", func(c *UCMConfig) { c.BlockSize = 0 }, "block_size"},
		"does not divide":   {"Empty", func(c *UCMConfig) { c.ShardSize = 1000 }, "multiple"},
		"negative":          {"Empty", func(c *UCMConfig) { c.TimeoutMs = -1 }, "timeout_ms"},
		"too long":          {"Empty", func(c *UCMConfig) { c.TimeoutMs = 18446744073710 }, "timeout_ms is 18446744073710; it must be from 1 to"},
		"too long a lease":  {"Pages", func(c *UCMConfig) { c.PagesLeaseMs = 18446744073710 }, "pages_lease_ms"},
		"too large":         {"Segment", func(c *UCMConfig) { c.SegmentCapacityGB, c.SegmentCapacityBytes = 1<<34+1, 0 }, "segment_capacity_gb"},
		"too large a cache": {"Cache|Empty", func(c *UCMConfig) { c.CacheBufferCapacityGB = 1 << 33 }, "cache_buffer_capacity_gb is 8589934592; it must be from 0 to"},
		"too many pages":    {"Pages", func(c *UCMConfig) { c.PagesFile, c.PagesCapacityGB = "x", 1<<34+1 }, "pages_capacity_gb"},
		"checksums":         {"Empty", func(c *UCMConfig) { c.Checksums = "sometimes" }, "auto, require or off"},
		"engine":            {"Posix", func(c *UCMConfig) { c.PosixIOEngine = "uring" }, "psync"},
		"digits":            {"Posix", func(c *UCMConfig) { n := 6; c.DataDirShardBytes = &n }, "0 to 5"},
		"a million streams": {"Segment", func(c *UCMConfig) { c.StreamNumber = 1_000_000 }, "stream_number is 1000000; it must be from 1 to 1024"},
		"no backends":       {"Posix", func(c *UCMConfig) { c.StorageBackends = "" }, "storage_backends is missing"},
		"a file":            {"Posix", func(c *UCMConfig) { c.StorageBackends = file }, "file"},
		"not a 3FS":         {"Ds3fs", func(c *UCMConfig) {}, "3FS"},
		"no capacity":       {"Segment", func(c *UCMConfig) { c.SegmentCapacityBytes = 0 }, "segment_capacity_gb is missing"},
		"two capacities":    {"Segment", func(c *UCMConfig) { c.SegmentCapacityGB = 1 }, "write one"},
		"two directories":   {"Segment", func(c *UCMConfig) { c.StorageBackends += ":/x" }, "Segment has one"},
		"fraction":          {"Segment", func(c *UCMConfig) { c.SegmentCarryFraction = 1 }, "segment_carry_fraction is 1"},
		"no pages":          {"Pages", func(c *UCMConfig) {}, "pages_file is missing"},
		"two caches":        {"Cache|Empty", func(c *UCMConfig) { c.CacheBufferBytes, c.CacheBufferCapacityGB = 1, 1 }, "write one"},
		"too small a cache": {"Cache|Empty", func(c *UCMConfig) { c.CacheBufferBytes = 4096 }, "cache"},
		"policy":            {"Cache|Empty", func(c *UCMConfig) { c.CachePolicy = "random" }, "lru"},
		"store":             {"Cache|Posit", func(c *UCMConfig) {}, "did you mean Posix?"},
	} {
		t.Run(name, func(t *testing.T) {
			ucm := good
			c.change(&ucm)
			config, err := ucm.Config(c.chain)
			var s *Store
			if err == nil {
				s, err = Open(c.chain, config)
			}
			if err == nil {
				t.Fatal("opened", s.Close())
			}
			if !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(c.want)) {
				t.Errorf("%v; want %q", err, c.want)
			}
		})
	}
}

// Stores that move data by system calls use any memory in place, so a cache in front of
// them does not take its own from /dev/shm.
func TestOnlyRingsTakeMemory(t *testing.T) {
	for chain, c := range map[string]Config{
		"Posix":   {Posix: &PosixOptions{Dirs: []string{t.TempDir()}}},
		"Segment": {Segment: &SegmentOptions{Dir: t.TempDir(), CapacityBytes: 1 << 20}},
	} {
		c.Namespace, c.Layout.BlockBytes = namespace, 4096
		s, err := Open(chain, c)
		if err != nil {
			t.Fatal(err)
		}
		if _, ok := s.chain.(kv.Registrar); ok {
			t.Errorf("%s wants memory to be registered", chain)
		}
		if err := s.Register("no-such-object", make([]byte, 4096)); err != nil {
			t.Errorf("%s: Register: %v; want nothing done", chain, err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
