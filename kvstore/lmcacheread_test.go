package kvstore

import (
	"slices"
	"strings"
	"testing"
)

const ofLMCaches = `
chunk_size: 128
local_cpu: false
max_local_cpu_size: 5
remote_storage_plugins: ["hf3fs.primary"]
blocking_timeout_secs: 20
pre_caching_hash_algorithm: sha256_cbor
extra_config:
  remote_storage_plugin.hf3fs.primary.base_path: "/mnt/3fs/a, /mnt/3fs/b"
  hf3fs_mount_point: /mnt/3fs
  hf3fs_io_thread_num: 8
  hf3fs_iov_size: "209715200"
  hf3fs_ior_entries: 256
  hf3fs_io_depth: 0
  hf3fs_numa_id: -1
  save_chunk_meta: false
  fs_connector_relative_tmp_dir: tmp
  lookup_backoff_time: 0.1
`

func TestReadLMCacheConfig(t *testing.T) {
	c, notes, err := ReadConfig([]byte(ofLMCaches))
	if err != nil {
		t.Fatal(err)
	}
	o := c.LMCache
	if c.StorePipeline != "LMCache" || c.Namespace.BlockTokens != 128 || c.TimeoutMs != 20000 ||
		!slices.Equal(o.BasePaths, []string{"/mnt/3fs/a", "/mnt/3fs/b"}) || o.Rings != 8 || o.BufferBytes != 200<<20 || o.RingEntries != 256 ||
		o.NUMANode != nil || !o.NoChunkMeta || o.RelativeTmpDir != "tmp" {
		t.Errorf("%+v %+v", c, o)
	}
	for _, key := range []string{"local_cpu", "max_local_cpu_size", "pre_caching_hash_algorithm", "lookup_backoff_time"} {
		if !slices.ContainsFunc(notes, func(note string) bool { return strings.HasPrefix(note, key+" has no effect here: ") }) {
			t.Errorf("nothing is said about %s: %q", key, notes)
		}
	}
	c.Namespace.Model, c.Namespace.DType, c.BlockSize = "m", "bfloat16", 4096
	for _, chain := range []string{"LMCache", "Cache|LMCache"} {
		config, err := c.Config(chain)
		if err != nil || !slices.Equal(config.LMCache.BasePaths, o.BasePaths) {
			t.Errorf("%s: %+v, %v", chain, config.LMCache, err)
		}
	}
}

func TestReadLMCachePaths(t *testing.T) {
	for src, want := range map[string][]string{
		"remote_url: 'hf3fs:///mnt/3fs/a,/mnt/3fs/b'\nextra_config: {hf3fs_mount_point: /mnt/3fs}": {"/mnt/3fs/a", "/mnt/3fs/b"},
		"remote_url: fs://host:0/tmp/a":                                                 {"/tmp/a"},
		"remote_url: 'fs:///tmp/a, /tmp/b'":                                             {"/tmp/a", "/tmp/b"},
		"remote_storage_plugins: [redis.a, fs.b]\nextra_config: {fs_base_path: /tmp/a}": {"/tmp/a"},
		"remote_storage_plugins: [fs]\nextra_config: {remote_storage_plugin.fs.base_path: /tmp/a, fs_connector_use_odirect: true}": {"/tmp/a"},
	} {
		c, _, err := ReadConfig([]byte(src))
		if err != nil || !slices.Equal(c.LMCache.BasePaths, want) {
			t.Errorf("%s: %+v, %v", src, c.LMCache, err)
		}
	}
}

func TestReadLMCacheConfigRefuses(t *testing.T) {
	for text, c := range map[string]struct{ from, to string }{
		"line 2: chunk_size is the text \"abc\", not a whole number": {"chunk_size: 128", "chunk_size: abc"},
		"write a whole number, 1 to 1048576":                         {"chunk_size: 128", "chunk_size: 0"},
		"did you mean chunk_size?":                                   {"local_cpu: false", "chunk_sise: 12"},
		"neither LMCache's 3FS connector":                            {"hf3fs.primary\"]", "redis.primary\"]"},
		"write one of them":                                          {"[\"hf3fs.primary\"]", "[hf3fs.primary, hf3fs.b]"},
		"is not a list":                                              {"[\"hf3fs.primary\"]", "hf3fs.primary"},
		"no hf3fs_mount_point":                                       {"  hf3fs_mount_point: /mnt/3fs\n", ""},
		"compares it byte by byte":                                   {"hf3fs_mount_point: /mnt/3fs", "hf3fs_mount_point: /mnt/3fs/"},
		"is not below it":                                            {"hf3fs_mount_point: /mnt/3fs", "hf3fs_mount_point: /mnt/3"},
		"absolute paths with commas":                                 {"/mnt/3fs/a,", "a,"},
		"write a whole number, 104857600 to 2147483648":              {"209715200", "1000"},
		"write a whole number, 128 to 1024":                          {"entries: 256", "entries: 64"},
		"write a whole number, -128 to 128":                          {"depth: 0", "depth: 129"},
		"write a whole number, 2 to 16":                              {"thread_num: 8", "thread_num: 1"},
		"write a whole number, -1 to 1023":                           {"numa_id: -1", "numa_id: -2"},
		"write true or false":                                        {"meta: false", "meta: maybe"},
		"write a path below the base path":                           {"tmp_dir: tmp", "tmp_dir: /tmp"},
		"unknown key \"hfs3fs_ior_entries\"":                         {"hf3fs_ior_entries", "hfs3fs_ior_entries"},
		"only naive leaves":                                          {"local_cpu: false", "remote_serde: cachegen"},
		"a block is then one layer":                                  {"local_cpu: false", "use_layerwise: true"},
		"has no remote_storage_plugin.hf3fs.primary.bas":             {"remote_storage_plugin.hf3fs.primary.base_path", "remote_storage_plugin.hf3fs.other.base_path"},
	} {
		src := strings.Replace(ofLMCaches, c.from, c.to, 1)
		if src == ofLMCaches {
			t.Fatalf("%q is not there", c.from)
		}
		if _, _, err := ReadConfig([]byte(src)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", text, err)
		}
	}
	for src, text := range map[string]string{
		"remote_url: redis://host:1":     "only hf3fs:// and fs:// keep files",
		"remote_url: fs://host":          "write fs://host:0/ and the path",
		"remote_url: hf3fs:///mnt/3fs/a": "no hf3fs_mount_point",
		"extra_config: 3":                "has no keys",
		"chunk_size: 256":                "neither LMCache's 3FS connector",
		"foo: 1\nbar: 2":                 "it is neither a file of UCM's",
		"remote_storage_plugins: [fs]\nextra_config: {fs_base_path: }": "has no value",
	} {
		if _, _, err := ReadConfig([]byte(src)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", src, err)
		}
	}
}

func TestLMCacheDefaults(t *testing.T) {
	c := Config{Namespace: namespace, Layout: Layout{BlockBytes: 2 * 4 * 16 * 64 * 2}}
	c.Namespace.DType, c.Namespace.Layers, c.Namespace.TPSize, c.Namespace.TPRank = "torch.bfloat16", 4, 2, 1
	o := &LMCacheOptions{}
	name, _, err := o.names(c.Namespace)
	if err != nil || name.String() != "kv3fs-SEP-test@2@1@@bfloat16.data" {
		t.Errorf("%v, %v", name, err)
	}
	h, err := o.header(c, name.DType)
	if err != nil || h.Check() != nil || h.Groups[0].Shape != [4]int{2, 4, 16, 64} {
		t.Errorf("%+v, %v", h, err)
	}
	for text, change := range map[string]func(*LMCacheOptions, *Config){
		"is no tensor":             func(o *LMCacheOptions, c *Config) { c.Layout.BlockBytes++ },
		"set Config.LMCache.DType": func(o *LMCacheOptions, c *Config) { c.Namespace.DType = "" },
		"has no code for the type": func(o *LMCacheOptions, c *Config) {
			o.Header = &LMCacheHeader{Tensors: []LMCacheTensor{{DType: "int8"}}}
		},
		"set IDs":                        func(o *LMCacheOptions, c *Config) { o.Objects = &LMCacheObjects{} },
		"for files without a header":     func(o *LMCacheOptions, c *Config) { o.DirectIO = true },
		"Config.LMCache.BasePaths":       func(o *LMCacheOptions, c *Config) { o.BasePaths = nil },
		"Config.LMCache.WorldSize is -1": func(o *LMCacheOptions, c *Config) { o.WorldSize = -1 },
	} {
		c := c
		c.LMCache = &LMCacheOptions{BasePaths: []string{t.TempDir()}}
		change(c.LMCache, &c)
		if s, err := Open("LMCache", c); err == nil || !strings.Contains(err.Error(), text) {
			if s != nil {
				s.Close()
			}
			t.Errorf("%s: %v", text, err)
		}
	}
}

// LMCache reads a Boolean as YAML does, and a file may have the keys of both connectors.
func TestLMCacheFilesOfBothConnectors(t *testing.T) {
	const file = `chunk_size: 256
remote_storage_plugins: ["fs.primary"]
extra_config:
  remote_storage_plugin.fs.primary.base_path: /data/lmcache
  fs_base_path: /data/other
  hf3fs_base_path: /mnt/3fs/lmcache
  hf3fs_mount_point: /mnt/3fs
`
	c, notes, err := ReadConfig([]byte(file))
	if err != nil {
		t.Fatal(err)
	}
	if got := c.LMCache.BasePaths; len(got) != 1 || got[0] != "/data/lmcache" {
		t.Errorf("base paths %v", got)
	}
	for _, key := range []string{"fs_base_path", "hf3fs_base_path", "hf3fs_mount_point"} {
		if !strings.Contains(strings.Join(notes, "\n"), key+" has no effect here") {
			t.Errorf("no note about %s: %q", key, notes)
		}
	}
	for _, on := range []string{"true", "True", "yes", "on"} {
		if _, _, err := ReadConfig([]byte(file + "use_layerwise: " + on + "\n")); err == nil || !strings.Contains(err.Error(), "use_layerwise is true") {
			t.Errorf("use_layerwise: %s: %v", on, err)
		}
	}
}
