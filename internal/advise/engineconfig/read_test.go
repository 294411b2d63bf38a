package engineconfig

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

func environ(pairs map[string]string) func(string) (string, bool) {
	return func(key string) (string, bool) { v, ok := pairs[key]; return v, ok }
}

const lmcacheGood = `
chunk_size: 256
local_cpu: False
remote_storage_plugins: ["hf3fs.primary"]
extra_config:
    remote_storage_plugin.hf3fs.primary.base_path: "/3fs/stage/dir1,/3fs/stage/dir2"
    hf3fs_mount_point: "/3fs/stage"
    hf3fs_iov_size: 209715200 #200MB
    hf3fs_ior_entries: 256
    hf3fs_io_depth: 0
    hf3fs_numa_id: -1
    hf3fs_io_thread_num: 4
`

const vllmGood = `{"kv_connector":"HF3FSKVConnector","kv_role":"kv_both","kv_connector_extra_config":{"hf3fs_storage_path":"/mnt/3fs/v","hf3fs_file_size":1099511627776}}`

const sglangGood = `{"file_path_prefix": "/mnt/3fs/s/hicache", "file_size": 1099511627776, "numjobs": 16, "entries": 8, "metadata_server_url": "http://10.0.0.1:18000"}`

const ucmGood = `
ucm_connectors:
  - ucm_connector_name: "UcmPipelineStore"
    ucm_connector_config:
      store_pipeline: "Cache|Ds3fs"
      storage_backends: "/mount/3fs"
`

const rtpGood = `
export REUSE_CACHE=1
ENABLE_REMOTE_CACHE="1"
RECO_SERVER_ADDRESS='10.0.0.1:6381'
# a comment
RECO_MODEL_SDK_CONFIG=[{"type":"3fs","sdk_log_level":"DEBUG"}]
TP_SIZE=4
`

// rtpNew has only names that RTP-LLM reads since September 2026.
const rtpNew = `
REUSE_CACHE=1
ENABLE_REMOTE_CACHE=1
KVCM_SERVER_ADDRESS=10.0.0.1:6381
KVCM_INSTANCE_GROUP=default
KVCM_REMOTE_LAYOUT=canonical_v1
KVCM_DEFAULT_QUERY_TYPE=1
KVCM_QUERY_TYPE=0
KVCM_SW_SIZE=0
KVCM_READ_BACKEND_TYPE=1
KVCM_MIN_REPLICA_COUNT=1
RECO_MODEL_SDK_CONFIG=[{"type":"3fs","sdk_log_level":"INFO"}]
TP_SIZE=4
`

const rtpDirect = "REUSE_CACHE=1\nENABLE_3FS=1\nBIZ_NAME=b\nCHECKPOINT_PATH=/m\n"

const mooncakeGood = "MOONCAKE_ENABLE_DFS=true\nMOONCAKE_DFS_ROOT_DIR=/mnt/3fs/mooncake\n"

// mooncakeClient is what upstream's page on deployment tells clients to set.
const mooncakeClient = `
export MOONCAKE_OFFLOAD_ENABLED=true
export MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR=distributed_storage_backend
export MOONCAKE_OFFLOAD_FILE_STORAGE_PATH=/data/file_storage
export MOONCAKE_MASTER=127.0.0.1:50051
export MOONCAKE_DFS_ROOT_DIR=/mnt/3fs/mooncake
export MOONCAKE_DFS_FS_ADAPTER=hf3fs
export MOONCAKE_DFS_ALLOCATOR_TYPE=shard
export MOONCAKE_DFS_SHARD_COUNT=64
export MOONCAKE_DFS_SHARD_CAPACITY=4294967296
export MOONCAKE_DFS_ALIGNMENT=4096
export MOONCAKE_DFS_SINGLE_TENANT=true
`

// mooncakeMaster has every variable that upstream's reference lists for the master.
const mooncakeMaster = mooncakeGood + `MOONCAKE_DFS_EVICTION_ENABLED=true
MOONCAKE_DFS_EVICTION_HIGH_WATERMARK=0.95
MOONCAKE_DFS_EVICTION_LOW_WATERMARK=0.92
MOONCAKE_DFS_DEFERRED_FREE_SECONDS=0
MOONCAKE_DFS_EVICTION_CHECK_INTERVAL=5
`

const mooncakeBucket = mooncakeMaster + `MOONCAKE_DFS_ALLOCATOR_TYPE=bucket
MOONCAKE_DFS_BUCKET_CAPACITY=268435456
MOONCAKE_DFS_MAX_BUCKET_COUNT=256
MOONCAKE_DFS_BATCH_READ_THREADS=128
`

// mooncakeOld is a file of a version that had only the older names.
const mooncakeOld = "MOONCAKE_DFS_ENABLED=1\nMOONCAKE_DISTRIBUTED_ROOT_DIR=/mnt/3fs/mooncake\nMOONCAKE_DISTRIBUTED_FS_TYPE=hf3fs\n"

const l2Good = `{"type": "hf3fs", "mount_point": "/mnt/3fs", "base_paths": "/mnt/3fs/a, /mnt/3fs/b", "num_workers": 8}`

// The examples in upstream's documents cause no more than notes, and their needs are
// computed.
func TestGoodConfigurations(t *testing.T) {
	for _, c := range []struct {
		name, engine, text string
		env                map[string]string
		mount, paths       string
		shm                int64 // per rank
		shared             int64
		rings              int
		tp                 int
	}{
		{"plugin", LMCache, lmcacheGood, nil, "/3fs/stage", "/3fs/stage/dir1 /3fs/stage/dir2", 5 * 2 * 209715200, 0, 10, 0},
		{"url", LMCache, "remote_url: \"hf3fs:///3fs/stage/hello, /3fs/stage/world\"\nextra_config: {hf3fs_mount_point: /3fs/stage}", nil,
			"/3fs/stage", "/3fs/stage/hello /3fs/stage/world", 5 * 2 * 209715200, 0, 10, 0},
		{"extra config in the environment", LMCache, `remote_storage_plugins: ["hf3fs.x"]`,
			map[string]string{"LMCACHE_EXTRA_CONFIG": `{"hf3fs_mount_point": "/m", "hf3fs_base_path": "/m/a", "hf3fs_io_thread_num": 2, "hf3fs_iov_size": 104857600}`},
			"/m", "/m/a", 3 * 2 * 104857600, 0, 6, 0},
		{"two instances", LMCache, "remote_storage_plugins: [hf3fs.a, hf3fs.b]\nextra_config: {hf3fs_mount_point: /m, hf3fs_base_path: /m/x}", nil, "/m", "/m/x /m/x", 2 * 5 * 2 * 209715200, 0, 20, 0},
		{"adapter", LMCache, l2Good, nil, "/mnt/3fs", "/mnt/3fs/a /mnt/3fs/b", 0, 8 * 2 * 209715200, 16, 0},
		{"adapter for files", LMCache, `{"type": "fs_native", "base_path": "/data/l2/", "hash_subdir_levels": 2, "num_workers": 8}`, nil, "", "/data/l2", 0, 0, 0, 0},
		{"the better of two adapters", LMCache, `lmcache server --l2-adapter '{"type": "fs", "base_path": "/a"}' --l2-adapter '` + l2Good + "'", nil, "/mnt/3fs", "/mnt/3fs/a /mnt/3fs/b", 0, 8 * 2 * 209715200, 16, 0},
		{"adapter in a command", LMCache, "lmcache server --port 5555 \\\n --l2-adapter '" + l2Good + "' # done", nil, "/mnt/3fs", "/mnt/3fs/a /mnt/3fs/b", 0, 8 * 2 * 209715200, 16, 0},
		{"gds", LMCacheGDS, "gds_path: /nvme/a\ngds_buffer_size: 8192\nextra_config: {use_direct_io: true}", nil, "", "/nvme/a", 0, 0, 0, 0},
		{"gds by environment", LMCacheGDS, "local_cpu: false", map[string]string{"LMCACHE_GDS_PATH": "/nvme/a,/nvme/b", "LMCACHE_GDS_BUFFER_SIZE": "8192"}, "", "/nvme/a /nvme/b", 0, 0, 0, 0},
		{"gds by environment alone, with the older name", LMCacheGDS, "", map[string]string{"LMCACHE_GDS_PATH": "/nvme/a", "LMCACHE_CUFILE_BUFFER_SIZE": "8192", "LMCACHE_CHUNK_SIZE": "256", "LMCACHE_LOCAL_CPU": "False"}, "", "/nvme/a", 0, 0, 0, 0},
		{"gds by a script", LMCacheGDS, "# as documented\nexport LMCACHE_GDS_PATH='/nvme/a'\nexport LMCACHE_GDS_BUFFER_SIZE=\"8192\"\nvllm serve m -tp 4 --gpu-memory-utilization 0.85\n", nil, "", "/nvme/a", 0, 0, 0, 4},
		{"by environment alone", LMCache, "", map[string]string{"LMCACHE_REMOTE_STORAGE_PLUGINS": "hf3fs.primary", "LMCACHE_EXTRA_CONFIG": `{"hf3fs_mount_point": "/m", "hf3fs_base_path": "/m/a", "hf3fs_io_thread_num": 2, "hf3fs_iov_size": 104857600}`}, "/m", "/m/a", 3 * 2 * 104857600, 0, 6, 0},
		{"files without rings", LMCache, "remote_url: fs://host:0/m/a,/m/b", nil, "", "/m/a /m/b", 0, 0, 0, 0},
		{"json", VLLM, vllmGood, nil, "", "/mnt/3fs/v", 16 * 2 * 8 * 2 * mib, 0, 32, 0},
		{"command", VLLM, "vllm serve Qwen/QwQ-32B --tensor-parallel-size=2 --block-size 32 --kv-transfer-config='" + vllmGood + "'", nil, "", "/mnt/3fs/v", 16 * 2 * 8 * 4 * mib, 0, 32, 2},
		{"one of several", VLLM, `{"kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config":{"connectors":[{"kv_connector":"NixlConnector"},` + vllmGood + `]}}`,
			nil, "", "/mnt/3fs/v", 16 * 2 * 8 * 2 * mib, 0, 32, 0},
		{"file", SGLang, sglangGood, nil, "", "/mnt/3fs/s", 16 * 2 * 8 * 8 * mib, 0, 32, 0},
		{"minimal", UCM, ucmGood, nil, "/mount/3fs", "/mount/3fs", 32 * 16 * mib, 0, 64, 0},
		{"kvcm", RTPLLM, rtpGood, nil, "/3fs/stage/3fs", "/3fs/stage/3fs/kv_manager", 8 * gib, 0, 8, 4},
		{"kvcm, new names", RTPLLM, rtpNew, nil, "/3fs/stage/3fs", "/3fs/stage/3fs/kv_manager", 8 * gib, 0, 8, 4},
		{"kvcm, a client's JSON", RTPLLM, "REUSE_CACHE=1\nENABLE_REMOTE_CACHE=1\nKVCM_CLIENT_CONFIG={}", nil, "/3fs/stage/3fs", "/3fs/stage/3fs/kv_manager", 8 * gib, 0, 8, 0},
		{"arguments", RTPLLM, "python3 -m rtp_llm.start_server --reuse_cache True --enable_3fs True --tp_size 4 --checkpoint_path /m \\\n --biz_name=b", nil, "/3fs/stage/3fs", "/3fs/stage/3fs/rtp_llm", 8 * gib, 0, 8, 4},
		{"arguments and environment", RTPLLM, "BIZ_NAME=b CHECKPOINT_PATH=/m TP_SIZE=4 rtp --reuse_cache 1 --enable_3fs 1 --tp_size 2", nil, "/3fs/stage/3fs", "/3fs/stage/3fs/rtp_llm", 8 * gib, 0, 8, 2},
		{"direct", RTPLLM, rtpDirect + "THREEFS_READ_IOV_SIZE=1073741824\n", nil, "/3fs/stage/3fs", "/3fs/stage/3fs/rtp_llm", 5 * gib, 0, 8, 0},
		{"environment", Mooncake, mooncakeGood, nil, "", "/mnt/3fs/mooncake", 512 * mib, 0, 32, 0},
		{"a client", Mooncake, mooncakeClient, nil, "", "/mnt/3fs/mooncake", 512 * mib, 0, 32, 0},
		{"a master", Mooncake, mooncakeMaster, nil, "", "/mnt/3fs/mooncake", 512 * mib, 0, 32, 0},
		{"buckets", Mooncake, mooncakeBucket, nil, "", "/mnt/3fs/mooncake", 512 * mib, 0, 32, 0},
		{"older names", Mooncake, mooncakeOld, nil, "", "/mnt/3fs/mooncake", 512 * mib, 0, 32, 0},
		{"json", NIXL, `{"mount_point": "/mnt/3fs/", "iopool_size": "64"}`, nil, "/mnt/3fs", "", 0, 0, 0, 0},
		{"lines", NIXL, "mount_point=/mnt/3fs\nmem_config=dram_zc\n", nil, "/mnt/3fs", "", 0, 0, 0, 0},
	} {
		got, err := Read(c.engine, "file", textOrNone(c.text), Params{}, environ(c.env))
		if err != nil {
			t.Errorf("%s %s: %v", c.engine, c.name, err)
			continue
		}
		for _, p := range got.Problems {
			if p.Severity != Note {
				t.Errorf("%s %s: %+v", c.engine, c.name, p)
			}
		}
		n := got.Need
		if paths := strings.Join(got.BasePaths, " "); got.Mount != c.mount || paths != c.paths || n.ShmBytesPerRank != c.shm ||
			n.ShmBytesShared != c.shared || n.Rings != c.rings || got.TP != c.tp {
			t.Errorf("%s %s: %+v", c.engine, c.name, got)
		}
	}
}

// Every mistake is reported with its key, its effect and the fix.
func TestBadConfigurations(t *testing.T) {
	lm := func(old, new string) string { return strings.Replace(lmcacheGood, old, new, 1) }
	for _, c := range []struct {
		engine, text string
		severity     Severity
		key, want    string // want is in what or fix
	}{
		{LMCache, lm("209715200", "1"), Failure, "extra_config.hf3fs_iov_size", "104857600 to 2147483648"},
		{LMCache, lm("209715200", "2147483649"), Failure, "extra_config.hf3fs_iov_size", "is 2147483649"},
		{LMCache, lm("209715200", "200MB"), Failure, "extra_config.hf3fs_iov_size", "not a whole number"},
		{LMCache, lm("entries: 256", "entries: 64"), Failure, "extra_config.hf3fs_ior_entries", "128 to 1024"},
		{LMCache, lm("depth: 0", "depth: -129"), Failure, "extra_config.hf3fs_io_depth", "-128 to 128"},
		{LMCache, lm("depth: 0", "depth: 8"), Warning, "extra_config.hf3fs_io_depth", "never reaches the ring"},
		{LMCache, lm("num: 4", "num: 17"), Failure, "extra_config.hf3fs_io_thread_num", "2 to 16"},
		{LMCache, lm("numa_id: -1", "numa_id: -2"), Failure, "extra_config.hf3fs_numa_id", "-1 to"},
		{LMCache, lm("hf3fs_iov_size", "hfs3fs_iov_size"), Warning, "extra_config.hfs3fs_iov_size", "write hf3fs_iov_size"},
		{LMCache, lm("hf3fs_iov_size", "hf3fs_iov_sise"), Warning, "extra_config.hf3fs_iov_sise", "does nothing"},
		{LMCache, "hf3fs_iov_size: 1\n" + lmcacheGood, Warning, "hf3fs_iov_size", "only below extra_config"},
		{LMCache, lm(`"/3fs/stage"`, `"/3fs/stage/"`), Failure, "extra_config.hf3fs_mount_point", "write /3fs/stage"},
		{LMCache, lm(`"/3fs/stage"`, `3fs/stage`), Failure, "extra_config.hf3fs_mount_point", "not an absolute path"},
		{LMCache, lm(`hf3fs_mount_point: "/3fs/stage"`, ``), Failure, "extra_config.hf3fs_mount_point", "is missing"},
		{LMCache, lm(`dir1,`, `../x,`), Failure, "extra_config.remote_storage_plugin.hf3fs.primary.base_path", "not below the mount point"},
		{LMCache, lm("hf3fs.primary.base_path", "hf3fs.other.base_path"), Warning, "extra_config.remote_storage_plugin.hf3fs.other.base_path", "write remote_storage_plugin.hf3fs.primary.base_path"},
		{LMCache, lm("hf3fs.primary.base_path", "hf3fs.other.base_path"), Failure, "extra_config.hf3fs_base_path", "names no base path"},
		{LMCache, lm(`["hf3fs.primary"]`, `["hf3fs"]`), Failure, "remote_storage_plugins", "without an instance"},
		{LMCache, lm(`["hf3fs.primary"]`, `["nixl.primary"]`), Failure, "remote_storage_plugins", "nothing here stores on a 3FS"},
		{LMCache, lm(`["hf3fs.primary"]`, `["fs.primary"]`), Failure, "extra_config.fs_base_path", "names no base path"},
		{LMCache, "remote_url: fs://host:0/mnt/3fs/kv", Note, "", "not rings"},
		{LMCache, "remote_url: fs://host:0/mnt/3fs/kv\nextra_config: {fs_connector_use_odirect: true}", Note, "extra_config.fs_connector_use_odirect", "turned off"},
		{LMCache, "remote_url: fs://host:0", Failure, "remote_url", "names no base path"},
		{LMCache, lm(`remote_storage_plugins`, `remote_storage_plugin`), Warning, "remote_storage_plugin", "write remote_storage_plugins"},
		{LMCache, "remote_url: redis://h:1\nextra_config: {hf3fs_mount_point: /m}", Failure, "remote_url", "does not store on a 3FS"},
		{LMCache, "remote_url: hf3fs://\nextra_config: {hf3fs_mount_point: /m}", Failure, "remote_url", "names no base path"},
		{LMCache, "remote_url: hf3fs:///3fs/stage/u\n" + lmcacheGood, Warning, "remote_url", "both name a 3FS"},
		{LMCache, "extra_config: 3", Failure, "extra_config", "not a mapping"},
		{LMCache, "chunk_size: 0\n", Failure, "chunk_size", "1 to"},
		{LMCache, lm("numa_id: -1", "numa_id: -1\n    fs_connector_relative_tmp_dir: /tmp"), Failure, "extra_config.fs_connector_relative_tmp_dir", "relative"},
		{LMCache, lm("numa_id: -1", "numa_id: -1\n    save_chunk_meta: yep"), Failure, "extra_config.save_chunk_meta", "true or false"},
		{LMCache, `{"type": "hf3fs", "base_paths": "/m/a"}`, Failure, "mount_point", "missing"},
		{LMCache, `{"type": "hf3fs", "mount_point": "/m"}`, Failure, "base_paths", "names no directory"},
		{LMCache, `{"type": "hf3fs", "mount_point": "/m", "base_paths": "/n"}`, Failure, "base_paths", "not below"},
		{LMCache, `{"type": "hf3fs", "mount_point": "/m", "base_paths": "/m/a", "io_depth": 8}`, Warning, "io_depth", "may never start"},
		{LMCache, `{"type": "hf3fs", "mount_point": "/m", "base_paths": "/m/a", "hf3fs_iov_size": 8}`, Warning, "hf3fs_iov_size", "write iov_size"},
		{LMCache, `{"type": "s3", "base_paths": "/m/a"}`, Failure, "type", "not the 3FS adapter"},
		{LMCache, `{"type": "fs", "base_paths": "/m/a"}`, Failure, "base_path", "names no directory"},
		{LMCache, `{"type": "fs", "base_path": "/m/a"}`, Note, "", "hf3fs is faster"},
		{LMCache, `{"type": "fs_native", "base_path": "/m/a", "relative_tmp_dir": "../b"}`, Failure, "relative_tmp_dir", "is"},
		{LMCache, `{"type": "fs_native", "base_path": "/m/a", "hash_subdir_levels": 3}`, Failure, "hash_subdir_levels", "is 3"},
		{LMCache, `{"type": "fs_native", "base_path": "/m/a", "hash_subdir_level": 2}`, Warning, "hash_subdir_level", "not a key"},
		{LMCache, `{"type": "fs", "base_path": "/m/a", "hash_subdir_levels": 2}`, Warning, "hash_subdir_levels", "not a key"},
		{LMCache, `lmcache server --l2-adapter '{"type": "s3"}'`, Failure, "--l2-adapter", "no adapter of type hf3fs"},

		{LMCacheGDS, "gds_paths: /x", Failure, "gds_path", "names no directory"},
		{LMCacheGDS, "gds_paths: /x", Warning, "gds_paths", "write gds_path"},
		{LMCacheGDS, "gds_path: x", Failure, "gds_path", "not an absolute path"},
		{LMCacheGDS, "gds_path: /x\ngds_backend: cuda", Failure, "gds_backend", "cufile, hipfile"},
		{LMCacheGDS, "gds_path: /x\ngds_path_sharding: by_host", Failure, "gds_path_sharding", "by_gpu"},
		{LMCacheGDS, "gds_path: /x\ncufile_buffer_size: 1", Note, "cufile_buffer_size", "older name"},
		{LMCacheGDS, "gds_path: /x\ncufile_buffer_size: 0", Failure, "cufile_buffer_size", "1 to"},
		{LMCacheGDS, "gds_path: /x\ncufile_buffer_size: 8GB", Failure, "cufile_buffer_size", "not a whole number"},
		{LMCacheGDS, "gds_path: /x\ncufile_buffer_size: 1\ngds_buffer_size: 2", Warning, "cufile_buffer_size", "which newer versions read, is 2"},
		{LMCacheGDS, "gds_path: /x", Failure, "gds_buffer_size", "does not start without it"},
		{LMCacheGDS, "gds_path: /x\nextra_config: {use_cufile: maybe}", Failure, "extra_config.use_cufile", "true or false"},
		{LMCacheGDS, "gds_path: /x\nextra_config: {use_cufile: false}", Note, "extra_config.use_cufile", "use_gds"},

		{VLLM, strings.Replace(vllmGood, "HF3FSKVConnector", "hf3fs", 1), Failure, "kv_connector", "write HF3FSKVConnector"},
		{VLLM, strings.Replace(vllmGood, "HF3FSKVConnector", "LMCacheConnectorV1", 1), Failure, "kv_connector", "engine lmcache"},
		{VLLM, strings.Replace(vllmGood, "HF3FSKVConnector", "UCMConnector", 1), Failure, "kv_connector", "engine ucm"},
		{VLLM, strings.Replace(vllmGood, "kv_both", "both", 1), Failure, "kv_role", "kv_both, kv_producer"},
		{VLLM, `{"kv_connector":"HF3FSKVConnector"}`, Failure, "kv_role", "does not start"},
		{VLLM, `{"kv_connector":"HF3FSKVConnector"}`, Warning, "kv_connector_extra_config.hf3fs_storage_path", "/vllm-workspace"},
		{VLLM, strings.Replace(vllmGood, `"hf3fs_file_size"`, `"hf3fs_metadata_server_url":"http://other:1","hf3fs_file_size"`, 1), Warning, "kv_connector_extra_config.hf3fs_metadata_server_url", "not used"},
		{VLLM, strings.Replace(vllmGood, `"hf3fs_file_size"`, `"hf3fs_metadata_server_url":"http://localhost:18000","hf3fs_file_size"`, 1), Note, "kv_connector_extra_config.hf3fs_metadata_server_url", "anyway"},
		{VLLM, strings.Replace(vllmGood, "1099511627776", `"1TiB"`, 1), Failure, "kv_connector_extra_config.hf3fs_file_size", "not a whole number"},
		{VLLM, strings.Replace(vllmGood, "1099511627776", `100`, 1), Failure, "kv_connector_extra_config.hf3fs_file_size", "not one page of"},
		{VLLM, strings.Replace(vllmGood, "hf3fs_file_size", `hf3fs_filesize`, 1), Warning, "kv_connector_extra_config.hf3fs_filesize", "write hf3fs_file_size"},
		{VLLM, strings.Replace(vllmGood, "/mnt/3fs/v", `v`, 1), Failure, "kv_connector_extra_config.hf3fs_storage_path", "not an absolute path"},
		{VLLM, strings.Replace(vllmGood, `"hf3fs_file_size"`, `"hf3fs_client_numjobs":0,"hf3fs_file_size"`, 1), Failure, "kv_connector_extra_config.hf3fs_client_numjobs", "1 to"},
		{VLLM, strings.Replace(vllmGood, `"kv_role"`, `"kv_rolle":1,"kv_role"`, 1), Warning, "kv_rolle", "write kv_role"},

		{SGLang, `{}`, Failure, "entries", "does not start without it"},
		{SGLang, strings.Replace(sglangGood, "/mnt/3fs/s/hicache", "/mnt/3fs/s/", 1), Warning, "file_path_prefix", "ends with a slash"},
		{SGLang, strings.Replace(sglangGood, "/mnt/3fs/s/hicache", "hicache", 1), Failure, "file_path_prefix", "absolute"},
		{SGLang, strings.Replace(sglangGood, "http://10.0.0.1:18000", "10.0.0.1:18000", 1), Failure, "metadata_server_url", "not a URL"},
		{SGLang, strings.Replace(sglangGood, "http://10.0.0.1:18000", "http://:18000", 1), Failure, "metadata_server_url", "not a URL with a host"},
		{SGLang, sglangGood, Note, "client_timeout", "is missing, so it is 5 s"},
		{SGLang, strings.Replace(sglangGood, `"numjobs"`, `"client_timeout": 3, "numjobs"`, 1), Warning, "client_timeout", "is 3 s; a reply after it is mistaken"},
		{SGLang, strings.Replace(sglangGood, `"numjobs"`, `"client_timeout": 5, "numjobs"`, 1), Warning, "client_timeout", "write 10"},
		{SGLang, strings.Replace(sglangGood, `"numjobs"`, `"use_mock_hf3fs_client": true, "numjobs"`, 1), Warning, "use_mock_hf3fs_client", "not read from this file"},
		{SGLang, strings.Replace(sglangGood, `"metadata_server_url"`, `"metadata_server"`, 1), Warning, "metadata_server", "write metadata_server_url"},
		{SGLang, strings.Replace(sglangGood, `"numjobs": 16`, `"numjobs": "many"`, 1), Failure, "numjobs", "not a whole number"},

		{UCM, "ucm_connectors: []", Failure, "ucm_connectors", "exactly one"},
		{UCM, "ucm_connectors: [3, 4]", Failure, "ucm_connectors", "has 2"},
		{UCM, strings.Replace(ucmGood, "UcmPipelineStore", "UcmNfsStore", 1), Failure, "ucm_connectors[0].ucm_connector_name", "UcmPipelineStore"},
		{UCM, strings.Replace(ucmGood, "Cache|Ds3fs", "cache|ds3fs", 1), Failure, "ucm_connectors[0].ucm_connector_config.store_pipeline", "has different case"},
		{UCM, strings.Replace(ucmGood, "Cache|Ds3fs", "Cache|Posix", 1), Note, "ucm_connectors[0].ucm_connector_config.store_pipeline", "not rings"},
		{UCM, strings.Replace(ucmGood, "Cache|Ds3fs", "Cache|Posix", 1), Note, "ucm_connectors[0].ucm_connector_config.posix_capacity_gb", "deletes nothing"},
		{UCM, strings.Replace(ucmGood, "Cache|Ds3fs", "Cache|Posix", 1) + "      posix_gc_enable: true", Warning, "ucm_connectors[0].ucm_connector_config.posix_gc_enable", "the disk fills"},
		{UCM, strings.Replace(ucmGood, "Cache|Ds3fs", "Cache|Posix", 1) + "      posix_gc_enable: false\n      posix_capacity_gb: 9", Warning, "ucm_connectors[0].ucm_connector_config.posix_capacity_gb", "deletes nothing"},
		{UCM, strings.Replace(ucmGood, "Cache|Ds3fs", "Cache|Posix", 1) + "      posix_capacity_gb: much", Failure, "ucm_connectors[0].ucm_connector_config.posix_capacity_gb", "not a whole number"},
		{UCM, strings.Replace(ucmGood, "/mount/3fs", "/mount/3fs:/b", 1), Warning, "ucm_connectors[0].ucm_connector_config.storage_backends", "uses the first"},
		{UCM, ucmGood + "      running_queue_depth: 32768", Note, "ucm_connectors[0].ucm_connector_config.running_queue_depth", "not by Ds3fs"},
		{UCM, ucmGood + "      running_queue_depth: 1", Failure, "ucm_connectors[0].ucm_connector_config.running_queue_depth", "2 to"},
		{UCM, strings.Replace(ucmGood, "Cache|Ds3fs", "Cache|Posix", 1) + "      waiting_queue_depth: 0", Failure, "ucm_connectors[0].ucm_connector_config.waiting_queue_depth", "2 to"},
		{UCM, ucmGood + "      waiting_queue_depth: 1k", Failure, "ucm_connectors[0].ucm_connector_config.waiting_queue_depth", "not a whole number"},
		{UCM, ucmGood + "      buffer_size: 64", Warning, "ucm_connectors[0].ucm_connector_config.buffer_size", "neither Cache nor Ds3fs reads it"},
		{UCM, ucmGood + "      ior_depth: 8", Failure, "ucm_connectors[0].ucm_connector_config.ior_depth", "forever"},
		{UCM, ucmGood + "      posix_io_engine: aio", Warning, "ucm_connectors[0].ucm_connector_config.posix_io_engine", "does not read it"},
		{UCM, ucmGood + "      stream_numbers: 8", Warning, "ucm_connectors[0].ucm_connector_config.stream_numbers", "write stream_number"},
		{UCM, ucmGood + "      cache_stream_number: 33", Failure, "ucm_connectors[0].ucm_connector_config.cache_stream_number", "1 to 32"},
		{UCM, "use_layerwise: true\n" + ucmGood, Warning, "use_layerwise", "before all its layers"},

		{RTPLLM, strings.Replace(rtpGood, `"3fs"`, `"hf3fs"`, 1), Failure, "RECO_MODEL_SDK_CONFIG[0].type", `write "3fs"`},
		{RTPLLM, rtpGood, Note, "RECO_MODEL_SDK_CONFIG[0].type", "skips this entry"},
		{RTPLLM, strings.Replace(rtpGood, `"type"`, `"mountpoint":"/m","type"`, 1), Warning, "RECO_MODEL_SDK_CONFIG[0].mountpoint", "does not reach the SDK"},
		{RTPLLM, "REUSE_CACHE=1\nENABLE_REMOTE_CACHE=1\nRECO_SERVER_ADDRESS=h:1\nRECO_MODEL_SDK_CONFIG={}", Failure, "RECO_MODEL_SDK_CONFIG", "not a JSON list"},
		{RTPLLM, "ENABLE_REMOTE_CACHE=1", Failure, "REUSE_CACHE", "REUSE_CACHE=1"},
		{RTPLLM, "REUSE_CACHE=1", Failure, "ENABLE_REMOTE_CACHE", "nothing is stored"},
		{RTPLLM, "REUSE_CACHE=1\nENABLE_REMOTE_CACHE=1", Failure, "KVCM_SERVER_ADDRESS", "is missing"},
		{RTPLLM, rtpGood, Note, "RECO_SERVER_ADDRESS", "newer versions read only KVCM_SERVER_ADDRESS"},
		{RTPLLM, rtpNew, Note, "KVCM_SERVER_ADDRESS", "older versions read only RECO_SERVER_ADDRESS, RECO_INSTANCE_GROUP"},
		{RTPLLM, rtpNew + "RECO_SERVER_ADDRESS=other:1", Warning, "RECO_SERVER_ADDRESS", "differs from KVCM_SERVER_ADDRESS"},
		{RTPLLM, rtpNew + "KVCM_MODEL_SDK_CONFIG=[]", Warning, "KVCM_MODEL_SDK_CONFIG", "write RECO_MODEL_SDK_CONFIG"},
		{RTPLLM, strings.Replace(rtpNew, "canonical_v1", "v1", 1), Failure, "KVCM_REMOTE_LAYOUT", "legacy, canonical_v1"},
		{RTPLLM, strings.Replace(rtpNew, "BACKEND_TYPE=1", "BACKEND_TYPE=7", 1), Failure, "KVCM_READ_BACKEND_TYPE", "0, 1, 2"},
		{RTPLLM, strings.Replace(rtpNew, "BACKEND_TYPE=1", "BACKEND_TYPE=2", 1), Warning, "KVCM_READ_BACKEND_TYPE", "another storage"},
		{RTPLLM, strings.Replace(rtpNew, "_QUERY_TYPE=0", "_QUERY_TYPE=2", 1), Failure, "KVCM_READ_BACKEND_TYPE", "only be 0 or 1"},
		{RTPLLM, strings.Replace(rtpNew, "DEFAULT_QUERY_TYPE=1", "DEFAULT_QUERY_TYPE=3", 1), Failure, "KVCM_SW_SIZE", "needs a window"},
		{RTPLLM, strings.Replace(rtpNew, "DEFAULT_QUERY_TYPE=1", "DEFAULT_QUERY_TYPE=5", 1), Failure, "KVCM_DEFAULT_QUERY_TYPE", "write one of"},
		{RTPLLM, strings.Replace(rtpNew, "SW_SIZE=0", "SW_SIZE=-1", 1), Failure, "KVCM_SW_SIZE", "whole number"},
		{RTPLLM, strings.Replace(rtpNew, "REPLICA_COUNT=1", "REPLICA_COUNT=2", 1), Warning, "KVCM_MIN_REPLICA_COUNT", "one replica"},
		{RTPLLM, rtpNew + "KVCM_SERVER_ADRESS=x", Warning, "KVCM_SERVER_ADRESS", "write KVCM_SERVER_ADDRESS"},
		{RTPLLM, rtpGood + "RECO_SERVER_ADRESS=x", Warning, "RECO_SERVER_ADRESS", "write RECO_SERVER_ADDRESS"},
		{RTPLLM, rtpGood + "TP_SIZE=5", Warning, "TP_SIZE", "set twice"},
		{RTPLLM, rtpGood + "ENABLE_3FS=1", Warning, "ENABLE_3FS", "both on"},
		{RTPLLM, "REUSE_CACHE=1\nENABLE_3FS=1\n", Failure, "BIZ_NAME", "is missing"},
		{RTPLLM, "rtp --reuse_cache False --enable_3fs True --biz_name b --checkpoint_path /m", Failure, "--reuse_cache", "--reuse_cache True"},
		{RTPLLM, "rtp --reuse_cache True", Failure, "ENABLE_REMOTE_CACHE", "--enable_remote_cache True"},
		{RTPLLM, "rtp --reuse_cache --enable_3fs True --biz_name b --checkpoint_path /m", Failure, "--reuse_cache", "has no value"},
		{RTPLLM, "rtp --reuse_cache True --enable_3fs True --biz_name b --checkpoint_path /m --threefs_read_iov_size 4G", Failure, "--threefs_read_iov_size", "whole number"},
		{RTPLLM, "rtp --reuse_cache True --enable_3fs True --biz_name b --checkpoint_path /m --threefs_read_iov_sise 4", Warning, "--threefs_read_iov_sise", "write THREEFS_READ_IOV_SIZE"},
		{UCM, "load_only_first_rank: true\n" + ucmGood, Failure, "load_only_first_rank", "write load_only_first_rank: false"},
		{RTPLLM, rtpDirect + "THREEFS_WRITE_IOV_SIZE=1000", Failure, "THREEFS_WRITE_IOV_SIZE", "multiple of 1048576"},
		{RTPLLM, rtpDirect + "THREEFS_READ_IOV_SIZE=4G", Failure, "THREEFS_READ_IOV_SIZE", "whole number"},

		{Mooncake, "MOONCAKE_DFS_ROOT_DIR=/m", Failure, "MOONCAKE_ENABLE_DFS", "is not true"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_FS_ADAPTER=posix", Warning, "MOONCAKE_DFS_FS_ADAPTER", "not rings"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_FS_ADAPTER=3fs", Failure, "MOONCAKE_DFS_FS_ADAPTER", "write hf3fs"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_ALIGNMENT=5000", Failure, "MOONCAKE_DFS_ALIGNMENT", "power of two"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_SHARD_CAPACITY=4097", Failure, "MOONCAKE_DFS_SHARD_CAPACITY", "not a multiple"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_SHARD_COUNT=0", Failure, "MOONCAKE_DFS_SHARD_COUNT", "1 to"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_SINGLE_TENANT=false", Failure, "MOONCAKE_DFS_SINGLE_TENANT", "requires"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_EVICTION_HIGH_WATERMARK=0.5", Failure, "MOONCAKE_DFS_EVICTION_LOW_WATERMARK", "not below"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_EVICTION_HIGH_WATERMARK=NaN", Failure, "MOONCAKE_DFS_EVICTION_HIGH_WATERMARK", "from 0 to 1"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_HIGH_WATERMARK=0.9", Warning, "MOONCAKE_DFS_HIGH_WATERMARK", "write MOONCAKE_DFS_EVICTION_HIGH_WATERMARK"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_LOW_WATERMARK=0.7", Warning, "MOONCAKE_DFS_LOW_WATERMARK", "write MOONCAKE_DFS_EVICTION_LOW_WATERMARK"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_ALLOCATOR_TYPE=pool", Failure, "MOONCAKE_DFS_ALLOCATOR_TYPE", "write shard or bucket"},
		{Mooncake, mooncakeBucket + "MOONCAKE_DFS_BUCKET_CAPACITY=5000", Failure, "MOONCAKE_DFS_BUCKET_CAPACITY", "not a multiple"},
		{Mooncake, mooncakeGood, Note, "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "clients do"},
		{Mooncake, strings.Replace(mooncakeClient, "distributed_storage", "bucket_storage", 1), Failure, "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "write distributed_storage_backend"},
		{Mooncake, "MOONCAKE_OFFLOAD_ENABLED=true", Failure, "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "write distributed_storage_backend"},
		{Mooncake, strings.Replace(mooncakeClient, "ENABLED=true", "ENABLED=false", 1), Note, "MOONCAKE_OFFLOAD_ENABLED", "enable_ssd_offload=True"},
		{Mooncake, strings.Replace(mooncakeClient, "/data/file_storage", "data/..", 1), Failure, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "absolute path"},
		{Mooncake, strings.Replace(mooncakeClient, "/data/file_storage", "", 1), Warning, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "/data/file_storage is a directory"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_SHARDS=4", Warning, "MOONCAKE_DFS_SHARDS", "does nothing"},
		{Mooncake, "MOONCAKE_ENABLE_DFS=1\nMOONCAKE_DISTRIBUTED_ROOT_DIR=/m", Note, "MOONCAKE_DISTRIBUTED_ROOT_DIR", "older name"},

		{LMCache, "export VLLM_USE_V1=0\nvllm serve m", Failure, "LMCACHE_EXTRA_CONFIG.hf3fs_mount_point", "is missing"},
		{LMCache, "export VLLM_USE_V1=0\nvllm serve m", Failure, "LMCACHE_REMOTE_STORAGE_PLUGINS", "export LMCACHE_REMOTE_STORAGE_PLUGINS=hf3fs.primary"},

		{NIXL, `{"mount_point": "/mnt/3fs", "iopool_size": 64}`, Failure, "iopool_size", "only text"},
		{NIXL, `{"mount_point": "/mnt/3fs", "iopool_size": "lots"}`, Failure, "iopool_size", "do not start"},
		{NIXL, `{"mount_point": "/mnt/3fs", "iopool_size": "0"}`, Warning, "iopool_size", "uses 64"},
		{NIXL, `{"mount_point": "/mnt/3fs", "iopool_size": "2000000"}`, Warning, "iopool_size", "at most"},
		{NIXL, `{"mount_point": "/mnt/3fs", "mem_config": "vram"}`, Failure, "mem_config", "auto, dram, dram_zc"},
		{NIXL, `{"mountpoint": "/mnt/3fs"}`, Warning, "mountpoint", "write mount_point"},
		{NIXL, `{"mount_point": "mnt"}`, Failure, "mount_point", "not an absolute path"},
	} {
		got, err := Read(c.engine, "file", []byte(c.text), Params{}, nil)
		if err != nil {
			t.Errorf("%s %s: %v", c.engine, c.text, err)
			continue
		}
		found := false
		for _, p := range got.Problems {
			if p.Severity == c.severity && p.Key == c.key && strings.Contains(p.What+" "+p.Fix, c.want) {
				found = true
			}
		}
		if !found {
			t.Errorf("%s:\n%s\nwant a %s about %s with %q, got %+v", c.engine, c.text, c.severity, c.key, c.want, got.Problems)
		}
	}
}

// The given model decides the size of a block; the file decides all other sizes.
func TestReadForAModel(t *testing.T) {
	v3 := shape(t, "DeepSeek-V3")
	ucm := func(more string) string { return ucmGood + "      " + more }
	for _, c := range []struct {
		engine, text string
		p            Params
		perRank      int64
		shared       int64
		disk         int64
		problem      string
	}{
		{UCM, ucm("stream_number: 2\n      cache_buffer_capacity_gb: 9"), Params{Model: v3, TP: 8}, 2 * 128 * 70272, 9 * gib, 0, ""},
		{UCM, ucm("cache_buffer_capacity_gb: 8"), Params{Model: v3, TP: 8}, 32 * 128 * 70272, 8 * gib, 0, "holds 954 blocks"},
		{UCM, ucm("cache_buffer_capacity_gb: 4"), Params{Model: v3, BlockTokens: 32}, 32 * 32 * 70272, 4 * gib, 0, ""},
		{UCM, ucm("share_buffer_enable: false"), Params{Model: v3}, 32 * 128 * 70272, 0, 0, ""},
		{UCM, ucm("cache_buffer_capacity_gb: 1"), Params{}, 32 * 16 * mib, 0, 0, ""}, // no model is named
		{VLLM, strings.Replace(vllmGood, `"hf3fs_file_size"`, `"hf3fs_client_numjobs":1,"hf3fs_file_size"`, 1), Params{Model: shape(t, "Llama-3.1-8B")}, 32 * mib, 0, 1 << 40, ""},
		{VLLM, "vllm serve Qwen/QwQ-32B -tp 2 --kv-cache-dtype fp8 --kv-transfer-config='" + vllmGood + "'", Params{Model: shape(t, "Llama-3.1-8B"), TP: 1}, 16 * 2 * 8 * mib, 0, 1 << 40, ""},
		{SGLang, strings.NewReplacer(`"numjobs": 16`, `"numjobs": 1`, `"entries": 8`, `"entries": 1`).Replace(sglangGood), Params{Model: shape(t, "Llama-3.1-8B")}, 16 * mib, 0, 1 << 40, ""},
		{SGLang, sglangGood, Params{Model: shape(t, "Llama-3.1-8B"), ExtraPools: 1}, 2 * 16 * 2 * 8 * 8 * mib, 0, 2 << 40, ""},
		{SGLang, sglangGood, Params{Model: v3, TP: 8}, 16 * 2 * 8 * 64 * 70272, 0, 1 << 40, ""},
		{SGLang, strings.Replace(sglangGood, `, "metadata_server_url": "http://10.0.0.1:18000"`, "", 1), Params{Model: v3, TP: 8}, 16 * 2 * 8 * 64 * 70272, 0, 1 << 40, "does not start with an MLA model"},
		{Mooncake, mooncakeGood + "MOONCAKE_DFS_SHARD_COUNT=3\nMOONCAKE_DFS_SHARD_CAPACITY=8192", Params{}, 512 * mib, 0, 3 * 8192, ""},
		{Mooncake, mooncakeBucket, Params{}, 512 * mib, 0, 64 * gib, ""},
	} {
		got, err := Read(c.engine, "file", []byte(c.text), c.p, nil)
		if err != nil {
			t.Errorf("%s %+v: %v", c.engine, c.p, err)
			continue
		}
		if got.Need.DiskShared != (c.engine == SGLang && c.p.Model.MLA()) {
			t.Errorf("%s %+v: shared files: %v", c.engine, c.p, got.Need.DiskShared)
		}
		if n := got.Need; n.ShmBytesPerRank != c.perRank || n.ShmBytesShared != c.shared || n.DiskBytes != c.disk || n.DiskReserved != (c.engine == Mooncake && c.text != mooncakeBucket) {
			t.Errorf("%s %+v: %+v", c.engine, c.p, n)
		}
		for _, p := range got.Problems {
			if p.Severity == Failure && (c.problem == "" || !strings.Contains(p.What, c.problem)) {
				t.Errorf("%s %+v: %+v", c.engine, c.p, p)
			}
		}
		if c.problem != "" && (len(got.Problems) == 0 || got.Problems[0].Severity != Failure) {
			t.Errorf("%s %+v: no failure with %q: %+v", c.engine, c.p, c.problem, got.Problems)
		}
	}
	for _, p := range []Params{{TP: -1}, {TP: 3, Model: shape(t, "Llama-3.1-8B")}} {
		if got, err := Read(VLLM, "file", []byte(vllmGood), p, nil); err == nil {
			t.Errorf("%+v: %+v", p, got)
		}
	}
}

// Text that cannot be parsed is an error that names the file and the reason.
func TestUnreadable(t *testing.T) {
	for _, c := range []struct{ engine, text, want string }{
		{"vlm", "", "did you mean vllm?"},
		{LMCache, "a: [", "is not YAML"},
		{LMCache, "- a\n- b", "not a YAML mapping"},
		{LMCache, "a: &x 1\nb: *x", "alias"},
		{LMCache, "a: 1\n---\nb: 2", "several YAML documents"},
		{LMCache, "\xff\xfe", "not UTF-8 text"},
		{LMCache, strings.Repeat("#", maxConfigBytes+1), "more than 65536 bytes"},
		{LMCache, strings.Repeat("[", 1000), "nests brackets"},
		{LMCache, "a:\n" + strings.Repeat("- ", 1000), "list marks"},
		{LMCache, strings.Repeat(" ", 1000) + "a: 1", "indented"},
		{LMCache, "lmcache server --l2-adapter", "without a value"},
		{LMCache, "lmcache server --l2-adapter 'x'", "--l2-adapter is not JSON"},
		{LMCache, "lmcache server --l2-adapter '", "unclosed"},
		{VLLM, "vllm serve m", "neither the JSON of --kv-transfer-config nor"},
		{VLLM, "", "is empty"},
		{LMCache, "", "is empty"},
		{LMCache, " \n# nothing yet\n---\n", "is empty"},
		{LMCacheGDS, "\n", "is empty"},
		{UCM, "# ucm\n", "is empty"},
		{RTPLLM, "", "is empty"},
		{VLLM, `vllm serve --kv-transfer-config "$CONFIG"`, "is not JSON"},
		{VLLM, `{"a":1} {"b":2}`, "something follows"},
		{VLLM, `{"a":`, "is not JSON"},
		{SGLang, "", "is empty"},
		{SGLang, `{"numjobs": 1, "entries": 8, "numjobs": 2}`, `the key "numjobs" twice`},
		{SGLang, `{"pools": [{"a": {"b": 1}}, {"a": 1, "\u0061": 2}]}`, `the key "a" twice`},
		{LMCache, "chunk_size: 1\nchunk_size: 2", "chunk_size"},
		{LMCache, "extra_config: {a: 1, a: 2}", "already defined"},
		{SGLang, "[]", "is a list, not a JSON object"},
		{UCM, "\t- x: [", "is not YAML"},
		{RTPLLM, "what is this", "not KEY=VALUE"},
		{RTPLLM, "A='x", "quotes"},
		{NIXL, "mount point=/x", "not KEY=VALUE"},
	} {
		got, err := Read(c.engine, "the-file", []byte(c.text), Params{}, nil)
		if err == nil || !strings.Contains(err.Error(), c.want) || c.engine != "vlm" && !strings.HasPrefix(err.Error(), "the-file: ") {
			t.Errorf("%s %.40q: %+v, %v; want an error with %q", c.engine, c.text, got, err, c.want)
		}
		if err != nil && len(err.Error()) > 400 {
			t.Errorf("%s: an error of %d bytes", c.engine, len(err.Error()))
		}
	}
	if _, err := Read(LMCache, "f", []byte("a: 1"), Params{}, environ(map[string]string{"LMCACHE_EXTRA_CONFIG": "x"})); err == nil || !strings.Contains(err.Error(), "LMCACHE_EXTRA_CONFIG is not JSON") {
		t.Error(err)
	}
}

// LMCache's variables are read and checked like the keys of its file, which they override.
func TestLMCacheEnvironment(t *testing.T) {
	const file = "chunk_size: 256\ngds_path: /x\ngds_buffer_size: 64\n"
	for _, c := range []struct {
		name, value, text string
		severity          Severity
		key, want         string
	}{
		{"LMCACHE_CHUNK_SIZE", "abc", "", Failure, "LMCACHE_CHUNK_SIZE", `is the text "abc", not a whole number; LMCache logs that and goes on without it`},
		{"LMCACHE_CHUNK_SIZE", "abc", file, Failure, "LMCACHE_CHUNK_SIZE", "keeps the value of the file"},
		{"LMCACHE_CHUNK_SIZE", "0", file, Failure, "LMCACHE_CHUNK_SIZE", "write a whole number, 1 to"},
		{"LMCACHE_CHUNK_SIZE", "1.5", file, Failure, "LMCACHE_CHUNK_SIZE", "not a whole number"},
		{"LMCACHE_LOCAL_CPU", "yes", file, Warning, "LMCACHE_LOCAL_CPU", "counts as false"},
		{"LMCACHE_USE_GDS", "on", file, Warning, "LMCACHE_USE_GDS", "counts as false"},
		{"LMCACHE_MAX_LOCAL_CPU_SIZE", "5GB", file, Failure, "LMCACHE_MAX_LOCAL_CPU_SIZE", "not a number"},
		{"LMCACHE_GDS_BUFFER_SIZE", "0", file, Failure, "LMCACHE_GDS_BUFFER_SIZE", "1 to"},
		{"LMCACHE_CUFILE_BUFFER_SIZE", "8", file, Warning, "LMCACHE_CUFILE_BUFFER_SIZE", "gds_buffer_size, which newer versions read, is 64"},
		{"LMCACHE_CUFILE_BUFFER_SIZE", "8", "", Note, "LMCACHE_CUFILE_BUFFER_SIZE", "older name"},
		{"LMCACHE_GDS_PATH", "x", "", Failure, "LMCACHE_GDS_PATH", "not an absolute path"},
		{"LMCACHE_GDS_BACKEND", "cuda", "", Failure, "LMCACHE_GDS_BACKEND", "cufile, hipfile"},
		{"LMCACHE_EXTRA_CONFIG", `{"disk_io_threads": 9999}`, file, Failure, "LMCACHE_EXTRA_CONFIG.disk_io_threads", "1 to"},
		{"LMCACHE_EXTRA_CONFIG", "{}", file + "extra_config: {disk_io_threads: 8}", Warning, "extra_config", "replaces all of it"},
		{"LMCACHE_USE_EXPERIMENTAL", "True", file, Note, "LMCACHE_USE_EXPERIMENTAL", "is retired"},
		{"VLLM_USE_V1", "1", file, Note, "VLLM_USE_V1", "is retired"},
		{"VLLM_USE_V1", "0", file, Warning, "VLLM_USE_V1", "vLLM removed"},
		{"VLLM_ENABLE_V1_MULTIPROCESSING", "1", file, Note, "VLLM_ENABLE_V1_MULTIPROCESSING", "anyway"},
		{"VLLM_WORKER_MULTIPROC_METHOD", "spawn", file, Note, "VLLM_WORKER_MULTIPROC_METHOD", "by itself"},
		{"LMCACHE_LOG_LEVEL", "INFO", file, Note, "LMCACHE_LOG_LEVEL", "only sets the level"},
		{"LMCACHE_LOG_LEVEL", "VERBOSE", file, Warning, "LMCACHE_LOG_LEVEL", "counts as INFO"},
	} {
		got, err := Read(LMCacheGDS, "file", textOrNone(c.text), Params{}, environ(map[string]string{c.name: c.value}))
		if err != nil {
			t.Errorf("%s=%s: %v", c.name, c.value, err)
			continue
		}
		if !slices.ContainsFunc(got.Problems, func(p Problem) bool {
			return p.Severity == c.severity && p.Key == c.key && strings.Contains(p.What+" "+p.Fix, c.want)
		}) {
			t.Errorf("%s=%s over %q: want a %v about %s with %q, got %+v", c.name, c.value, c.text, c.severity, c.key, c.want, got.Problems)
		}
	}
	got, err := Read(LMCacheGDS, "file", []byte(file), Params{}, environ(map[string]string{"LMCACHE_GDS_BUFFER_SIZE": "'8192'", "LMCACHE_USE_GDS": "True"}))
	if err != nil || got.Need.GPUBufferBytes != 8*gib || !got.GDSAsked || len(got.Problems) > 0 {
		t.Errorf("%+v, %v", got, err)
	}
	if _, err := Read(LMCache, "start.sh", []byte(`export LMCACHE_CONFIG_FILE="$PWD/lmcache.yaml"`), Params{}, nil); err == nil || !strings.Contains(err.Error(), "give that file") {
		t.Error(err)
	}
	for _, c := range []struct {
		env   map[string]string
		file  string
		found bool
	}{
		{nil, "", false},
		{map[string]string{"LMCACHE_CONFIG_FILE": "/c.yaml", "LMCACHE_CHUNK_SIZE": "1"}, "/c.yaml", true},
		{map[string]string{"LMCACHE_CHUNK_SIZE": "1"}, "", true},
		{map[string]string{"LMCACHE_EXTRA_CONFIG": "{}"}, "", true},
		{map[string]string{"LMCACHE_OTHER": "1"}, "", false},
	} {
		if file, found := InEnvironment(LMCache, environ(c.env)); file != c.file || found != c.found {
			t.Errorf("%v: %q, %v", c.env, file, found)
		}
	}
}

// textOrNone returns the text of a file, nil where there is none.
func textOrNone(text string) []byte {
	if text == "" {
		return nil
	}
	return []byte(text)
}

// FuzzRead checks that Read returns for every text, and that its output is bounded.
func FuzzRead(f *testing.F) {
	for i, text := range []string{lmcacheGood, vllmGood, sglangGood, ucmGood, rtpGood, rtpNew, mooncakeGood, mooncakeClient, mooncakeBucket, l2Good,
		"LMCACHE_CHUNK_SIZE=abc LMCACHE_GDS_PATH=/x vllm serve m --gpu-memory-utilization 2", "lmcache server --l2-adapter '" + l2Good + "'", "vllm serve x --kv-transfer-config '" + vllmGood + "'", "a: &x [1]\nb: *x", "? - - ? x\n: {y: !!binary x}"} {
		f.Add(uint8(i), []byte(text))
	}
	f.Fuzz(func(t *testing.T, which uint8, text []byte) {
		engine := Names()[int(which)%len(Names())]
		tooLong := time.AfterFunc(5*time.Second, func() { panic(fmt.Sprintf("%s: Read does not end: %q", engine, text)) })
		c, err := Read(engine, "file", text, Params{}, environ(map[string]string{"LMCACHE_EXTRA_CONFIG": "{}", "LMCACHE_CHUNK_SIZE": string(text)}))
		tooLong.Stop()
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("an error of %d bytes", len(err.Error()))
			}
			return
		}
		if len(c.Problems) > 200 {
			t.Errorf("%d problems", len(c.Problems))
		}
		for _, p := range c.Problems {
			if p.What == "" || len(p.Key)+len(p.What)+len(p.Fix) > 2000 {
				t.Errorf("%.100q: problem %+v", text, p)
			}
		}
		if n := c.Need; n.ShmBytesPerRank < 0 || n.ShmBytesShared < 0 || n.OpenFiles < 0 || n.Rings < 0 || n.ShmBytes(8) < 0 {
			t.Errorf("need %+v", n)
		}
	})
}
