package kvstore

import (
	"reflect"
	"slices"
	"strings"
	"testing"
)

// engineFiles are configurations of engines, for fuzz targets.
func engineFiles() []string {
	all := []string{
		ofLMCaches,
		"remote_url: 'hf3fs:///mnt/3fs/a,/mnt/3fs/b'\nextra_config: {hf3fs_mount_point: /mnt/3fs}",
		"remote_url: fs://host:0/tmp/a",
		"chunk_size: 512\ngds_path: /tmp/gds\ncufile_buffer_size: 128\nextra_config: {use_direct_io: true}",
		"gds_path: [/nvme/a, /nvme/b]\ngds_buffer_size: 8192\nremote_url: fs://host:0/tmp/a",
		// RTP-LLM's variables and arguments, and KVCM's files.
		"BIZ_NAME: chat\nCHECKPOINT_PATH: /models/m\nMAX_BLOCK_SIZE_PER_ITEM: 4\nTHREEFS_READ_IOV_SIZE: 1073741824",
		direct, remote,
		"exec rtp --reuse_cache True --enable_3fs True --biz_name=chat \\\n --checkpoint_path '/models/m' --tp_size 4",
		"rtp --reuse_cache 1 --enable_remote_cache 1 --kvcm_model_sdk_config '[{\"type\":\"3fs\"}]'",
		`[{"type":"hf3fs","mountpoint":"/mnt/3fs/","root_dir":"kv/"},{"type":"3fs"}]`,
		`{"instance_id":"17","address":["x"],"sdk_config":{"thread_num":4,"sdk_backend_configs":[{"type":"hf3fs","mountpoint":"/mnt/3fs/","root_dir":"kv/"}]}}`,
		`{"thread_num":8,"queue_size":2000,"timeout_config":{},"sdk_backend_configs":[{"type":"hf3fs","read_iov_size":1}]}`,
	}
	for _, c := range l2Files {
		all = append(all, c.src)
	}
	return all
}

var l2Files = []struct {
	src   string
	want  LMCacheOptions
	notes []string
}{
	{`{"type": "fs_native", "base_path": "/data/l2/", "num_workers": 32, "use_odirect": true, "relative_tmp_dir": "tmp", "hash_subdir_levels": 2}`,
		LMCacheOptions{BasePaths: []string{"/data/l2"}, Transfers: 32, DirectIO: true, RelativeTmpDir: "tmp", HashSubdirLevels: 2}, nil},
	{`{"type": "fs_native", "base_path": "/data/l2", "read_ahead_size": 4096, "max_capacity_gb": 0.5, "eviction": {"eviction_policy": "LRU"}, "disk_high_watermark": 0.9}`,
		LMCacheOptions{BasePaths: []string{"/data/l2"}}, []string{"disk_high_watermark", "eviction", "max_capacity_gb", "read_ahead_size"}},
	{`{"type": "fs", "base_path": "/data/l2", "recover_on_start": false, "hash_subdir_levels": 2, "persist": true}`,
		LMCacheOptions{BasePaths: []string{"/data/l2"}}, []string{"hash_subdir_levels", "persist", "recover_on_start"}},
	{`{"type": "hf3fs", "mount_point": "/mnt/3fs", "base_paths": "/mnt/3fs/a, /mnt/3fs/b", "num_workers": 8, "ior_entries": 512, "io_depth": 0, "numa_id": -1, "iov_size": 104857600, "enable_key_buffer": true, "per_op_workers": {"store": 2}}`,
		LMCacheOptions{BasePaths: []string{"/mnt/3fs/a", "/mnt/3fs/b"}, Rings: 8, RingOptions: RingOptions{RingEntries: 512, BufferBytes: 100 << 20}}, []string{"enable_key_buffer", "per_op_workers"}},
	{`{"type": "hf3fs", "mount_point": "/", "base_paths": "/kv"}`, LMCacheOptions{BasePaths: []string{"/kv"}}, nil},
}

// The JSON of an adapter of LMCache's server says where its objects are, as LMCache reads it.
func TestReadL2Adapters(t *testing.T) {
	for _, c := range l2Files {
		c.want.Objects = &LMCacheObjects{}
		got, notes, err := ReadConfig([]byte(c.src))
		if err != nil || got.StorePipeline != "LMCache" || !reflect.DeepEqual(*got.LMCache, c.want) {
			t.Errorf("%s: %+v, %v", c.src, got.LMCache, err)
			continue
		}
		var keys []string
		for _, note := range notes {
			key, _, _ := strings.Cut(note, " has no effect here: ")
			keys = append(keys, key)
		}
		if !slices.Equal(keys, c.notes) {
			t.Errorf("%s: %q", c.src, notes)
		}
		got.Namespace, got.BlockSize = namespace, 4096
		for _, chain := range []string{"LMCache", "Cache|LMCache"} {
			if config, err := got.Config(chain); err != nil || config.LMCache.HashSubdirLevels != c.want.HashSubdirLevels {
				t.Errorf("%s: %+v, %v", chain, config.LMCache, err)
			}
		}
	}
	for src, text := range map[string]string{
		`{"type": "fs_native"}`:                                                                 "base_path is missing",
		`{"type": "hf3fs", "mount_point": "/m"}`:                                                "base_paths is missing",
		`{"type": "hf3fs", "base_paths": "/m/a"}`:                                               "mount_point is missing",
		`{"type": "hf3fs", "base_paths": "/n/a", "mount_point": "/m"}`:                          "is not below it",
		`{"type": "hf3fs", "base_paths": "/m/a", "mount_point": "/m/"}`:                         "byte by byte",
		`{"type": "hf3fs", "base_paths": "a", "mount_point": "/m"}`:                             "absolute paths",
		`{"type": "fs_native", "base_path": "a"}`:                                               "absolute path",
		`{"type": "fs_native", "base_path": "/a", "hash_subdir_levels": 3}`:                     "hash_subdir_levels is 3; write a whole number, 0 to 2",
		`{"type": "fs_native", "base_path": "/a", "hash_subdir_levels": -1}`:                    "write a whole number, 0 to 2",
		`{"type": "fs_native", "base_path": "/a", "hash_subdir_level": 1}`:                      "did you mean hash_subdir_levels?",
		`{"type": "fs_native", "base_path": "/a", "num_workers": 0}`:                            "write a whole number, 1 to 1024",
		`{"type": "fs_native", "base_path": "/a", "relative_tmp_dir": "../b"}`:                  "below the base path",
		`{"type": "fs_native", "base_path": "/a", "disk_high_watermark": 1.5}`:                  "write a number, 0 to 1",
		`{"type": "fs_native", "base_path": "/a", "max_capacity_gb": -1}`:                       "not negative",
		`{"type": "fs_native", "base_path": "/a", "read_ahead_size": 0}`:                        "read_ahead_size is 0",
		`{"type": "hf3fs", "base_paths": "/m/a", "mount_point": "/m", "iov_size": 1}`:           "write a whole number, 104857600 to",
		`{"type": "hf3fs", "base_paths": "/m/a", "mount_point": "/m", "ior_entries": 2000}`:     "write a whole number, 128 to 1024",
		`{"type": "hf3fs", "base_paths": "/m/a", "mount_point": "/m", "enable_key_buffer": 12}`: "write true or false",
		`{"type": "mooncake_store"}`:                                                            "unknown key",
	} {
		if _, _, err := ReadConfig([]byte(src)); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: %v", src, err)
		}
	}
}

// Each file of LMCache's is one store's: that of its GDS backend where it has a directory for it,
// also beside a connector, and else that of its connector. With neither it is refused.
func TestWhichStoreAFileIsFor(t *testing.T) {
	const remote = "remote_storage_plugins: [hf3fs.a]\nextra_config:\n  remote_storage_plugin.hf3fs.a.base_path: /mnt/3fs/kv\n  hf3fs_mount_point: /mnt/3fs\n  hf3fs_io_thread_num: 8\n  save_chunk_meta: false\n"
	const gds = "gds_path: /nvme/kv\ngds_buffer_size: 4096\nuse_gds: false\n"
	for name, c := range map[string]struct{ src, chain, note, err string }{
		"a connector":            {remote, "LMCache", "", ""},
		"a connector by URL":     {"remote_url: fs://h:0/data/kv\nchunk_size: 256\n", "LMCache", "", ""},
		"the GDS backend":        {gds, "Gds", "", ""},
		"its older keys":         {"gds_path: /nvme/kv\ncufile_buffer_size: 8\nextra_config: {use_cufile: false}\n", "Gds", "", ""},
		"both":                   {gds + remote, "Gds", "remote_storage_plugins has no effect here: LMCache asks its GDS backend first", ""},
		"both, the other first":  {"remote_url: fs://h:0/data/kv\n" + gds, "Gds", "remote_url has no effect here: LMCache asks its GDS backend first", ""},
		"no directory for GDS":   {"gds_buffer_size: 4096\nuse_gds: true\n" + remote, "LMCache", "gds_buffer_size has no effect here: it is a setting of LMCache's GDS backend", ""},
		"GDS without directory":  {"gds_buffer_size: 4096\nchunk_size: 256\n", "", "", "gds_path is missing"},
		"older, no directory":    {"cufile_buffer_size: 4096\n", "", "", "gds_path is missing"},
		"neither":                {"chunk_size: 256\nlocal_cpu: true\nmax_local_cpu_size: 5\n", "", "", "neither LMCache's 3FS connector nor its FS connector"},
		"another kind of remote": {"remote_url: redis://h:1\n", "", "", "only hf3fs:// and fs:// keep files"},
		"an adapter":             {"{type: fs_native, base_path: /data/kv}", "LMCache", "", ""},
		"none of LMCache's":      {"localdisk: 5\n", "", "", "unknown key"},
	} {
		t.Run(name, func(t *testing.T) {
			got, notes, err := ReadConfig([]byte(c.src))
			if c.err != "" {
				if err == nil || !strings.Contains(err.Error(), c.err) {
					t.Errorf("%v", err)
				}
				return
			}
			if err != nil || got.StorePipeline != c.chain || (got.LMCache != nil) != (c.chain == "LMCache") || (got.Gds != nil) != (c.chain == "Gds") {
				t.Fatalf("%+v, %v", got, err)
			}
			if !strings.Contains(strings.Join(notes, "\n"), c.note) {
				t.Errorf("notes: %q", notes)
			}
			got.Namespace, got.BlockSize = namespace, 4096
			if _, err := got.Config("Cache|" + c.chain); err != nil {
				t.Error(err)
			}
		})
	}
}
