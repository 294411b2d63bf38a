package engineconfig

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"
)

const (
	mooncakeBuckets      = 256
	mooncakeBucketBytes  = 256 * mib
	mooncakeClientDir    = "/data/file_storage" // Mooncake's default
	mooncakeDistributed  = "distributed_storage_backend"
	mooncakeShardPattern = "dfs_shard_*.data"
)

// readMooncake reads the environment of Mooncake's master, of a client, or of both.
func readMooncake(out *Config, content []byte, _ Params, env func(string) (string, bool)) error {
	values, err := envFile(out, content)
	if err != nil {
		return err
	}
	m := newMapping(values, "", out)
	e := environment{m, env}
	out.MakesPaths = true

	enabled := e.boolean("MOONCAKE_ENABLE_DFS")
	if e.boolean("MOONCAKE_DFS_ENABLED") {
		enabled = true
	}
	readMooncakeClient(e, enabled)
	root := e.either("MOONCAKE_DFS_ROOT_DIR", "MOONCAKE_DISTRIBUTED_ROOT_DIR", "/mnt/3fs/mooncake")
	checkBase(m, "MOONCAKE_DFS_ROOT_DIR", root, "")
	out.BasePaths = []string{path.Clean(root)}

	rings := true
	switch adapter := e.either("MOONCAKE_DFS_FS_ADAPTER", "MOONCAKE_DISTRIBUTED_FS_TYPE", "hf3fs"); adapter {
	case "hf3fs":
	case "posix":
		rings = false
		m.problem(Warning, "MOONCAKE_DFS_FS_ADAPTER", "is posix, which uses ordinary file calls, not rings", "write hf3fs")
	default:
		m.problem(Failure, "MOONCAKE_DFS_FS_ADAPTER", fmt.Sprintf("is %.80q", adapter), "write hf3fs")
	}
	out.Need = readMooncakeFiles(e)
	if e.text("MOONCAKE_DFS_SINGLE_TENANT") != "" && !e.boolean("MOONCAKE_DFS_SINGLE_TENANT") {
		m.problem(Failure, "MOONCAKE_DFS_SINGLE_TENANT", "is not true, which Mooncake requires", "write true")
	}
	readMooncakeEviction(e)
	for _, key := range mooncakeNames() {
		m.known[key] = true
	}
	m.unknown(func(key string) bool { return strings.HasPrefix(key, "MOONCAKE_DFS_") })

	if !rings {
		out.Need = out.Need.withoutRings()
	}
	return nil
}

// mooncakeNames lists the variables of Mooncake's master and clients that concern its storage.
func mooncakeNames() []string {
	return []string{
		"MOONCAKE_ENABLE_DFS", "MOONCAKE_DFS_ENABLED", "MOONCAKE_DFS_ROOT_DIR", "MOONCAKE_DFS_FS_ADAPTER", "MOONCAKE_DFS_SINGLE_TENANT", "MOONCAKE_DFS_ALLOCATOR_TYPE",
		"MOONCAKE_DFS_ALIGNMENT", "MOONCAKE_DFS_SHARD_COUNT", "MOONCAKE_DFS_SHARD_CAPACITY", "MOONCAKE_DFS_MAX_BUCKET_COUNT", "MOONCAKE_DFS_BUCKET_CAPACITY",
		"MOONCAKE_DFS_EVICTION_ENABLED", "MOONCAKE_DFS_EVICTION_LOW_WATERMARK", "MOONCAKE_DFS_EVICTION_HIGH_WATERMARK", "MOONCAKE_DFS_EVICTION_CHECK_INTERVAL",
		"MOONCAKE_DFS_DEFERRED_FREE_SECONDS",
		"MOONCAKE_DISTRIBUTED_ROOT_DIR", "MOONCAKE_DISTRIBUTED_FS_TYPE", "MOONCAKE_DISTRIBUTED_HEALTH_CHECK", "MOONCAKE_MASTER",
		"MOONCAKE_DFS_BATCH_READ_THREADS", "MOONCAKE_DFS_BATCH_READ_MERGE_ENABLED", "MOONCAKE_DFS_DIRECT_READ_ENABLED",
		"MOONCAKE_DFS_BUCKET_META_LOG_THRESHOLD", "MOONCAKE_DFS_READY_BUCKET_COUNT", "MOONCAKE_DFS_BUCKET_CREATE_CONCURRENCY",
		"MOONCAKE_OFFLOAD_ENABLED", "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH",
		"MOONCAKE_OFFLOAD_HEARTBEAT_INTERVAL_SECONDS", "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", "MOONCAKE_OFFLOAD_BUCKET_KEYS_LIMIT",
		"MOONCAKE_OFFLOAD_BUCKET_SIZE_LIMIT_BYTES", "MOONCAKE_OFFLOAD_DISK_EVICTION_HIGH_WATERMARK_RATIO",
	}
}

// readMooncakeClient reads what decides whether clients use the DFS. A file may be only
// the master's, which needs none of it, or only a client's, for which nothing is enabled.
func readMooncakeClient(e environment, enabled bool) {
	const key = "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR"
	m := e.m
	backend, on := e.text(key), e.boolean("MOONCAKE_OFFLOAD_ENABLED")
	dir := e.text("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH")
	client := backend != "" || on
	switch {
	case !enabled && !client:
		m.problem(Failure, "MOONCAKE_ENABLE_DFS", "is not true, so nothing is stored on a file system", "write MOONCAKE_ENABLE_DFS=true")
		return
	case !client:
		m.problem(Note, key, "is missing; the master does not need it, but clients do", "for clients, write "+key+"="+mooncakeDistributed+" and MOONCAKE_OFFLOAD_ENABLED=true")
		return
	case backend == "":
		m.problem(Failure, key, "is missing, so clients store in files of their own and not on the 3FS", "write "+mooncakeDistributed)
	case backend != mooncakeDistributed:
		m.problem(Failure, key, fmt.Sprintf("is %.80q, which does not store on the 3FS", backend), "write "+mooncakeDistributed)
	case !on:
		m.problem(Note, "MOONCAKE_OFFLOAD_ENABLED", "is not true; only a program that passes enable_ssd_offload=True to setup() stores on the 3FS", "write true")
	}
	switch {
	case dir == "":
		m.problem(Warning, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "is missing; clients do not start unless "+mooncakeClientDir+" is a directory that they may write to", "write such a directory; nothing is stored in it")
	case !path.IsAbs(dir) || slices.Contains(strings.Split(dir, "/"), ".."):
		m.problem(Failure, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", fmt.Sprintf("is %.80q; clients do not start", dir), "write the absolute path of a directory that exists, without ..")
	}
}

// readMooncakeFiles reads how many files of which size there will be.
func readMooncakeFiles(e environment) Need {
	m := e.m
	const kind = "MOONCAKE_DFS_ALLOCATOR_TYPE"
	buckets := false
	switch name := e.text(kind); name {
	case "", "shard", "SHARD":
	case "bucket", "BUCKET":
		buckets = true
	default:
		m.problem(Failure, kind, fmt.Sprintf("is %.80q", name), "write shard or bucket")
	}
	alignment := e.count("MOONCAKE_DFS_ALIGNMENT", 4096, 1<<40)
	if alignment&(alignment-1) != 0 {
		m.problem(Failure, "MOONCAKE_DFS_ALIGNMENT", fmt.Sprintf("is %d, not a power of two", alignment), "write 4096")
		alignment = 1
	}
	size := func(key string, fallback int64) int64 {
		n := e.count(key, fallback, math.MaxInt64)
		if n%alignment != 0 {
			m.problem(Failure, key, fmt.Sprintf("is %d, not a multiple of the alignment %d", n, alignment), fmt.Sprintf("write bytes, such as %d", fallback))
		}
		return n
	}
	shards, shard := e.count("MOONCAKE_DFS_SHARD_COUNT", mooncakeShards, maxCount), size("MOONCAKE_DFS_SHARD_CAPACITY", mooncakeShardBytes)
	bucketCount, bucket := e.count("MOONCAKE_DFS_MAX_BUCKET_COUNT", mooncakeBuckets, math.MaxInt32), size("MOONCAKE_DFS_BUCKET_CAPACITY", mooncakeBucketBytes)
	if !buckets {
		return mooncakeNeed(Params{Entries: int(shards), FileBytes: shard})
	}
	n := mooncakeNeed(Params{Entries: int(bucketCount), FileBytes: bucket})
	n.DiskReserved, n.DiskFiles = false, "" // a bucket is made when it is needed
	return n
}

func readMooncakeEviction(e environment) {
	m := e.m
	e.boolean("MOONCAKE_DFS_EVICTION_ENABLED")
	share := func(key string, fallback float64) float64 {
		s := e.text(key)
		if s == "" {
			return fallback
		}
		f, err := strconv.ParseFloat(s, 64)
		if err != nil || !(f >= 0 && f <= 1) {
			m.problem(Failure, key, fmt.Sprintf("is %.80q", s), fmt.Sprintf("write a share from 0 to 1, such as %g", fallback))
			return fallback
		}
		return f
	}
	const lowKey, highKey = "MOONCAKE_DFS_EVICTION_LOW_WATERMARK", "MOONCAKE_DFS_EVICTION_HIGH_WATERMARK"
	low, high := share(lowKey, 0.7), share(highKey, 0.9)
	if low >= high {
		m.problem(Failure, lowKey, fmt.Sprintf("is %g, not below the high one, %g", low, high), "write 0.7 and 0.9")
	}
	if s := e.text("MOONCAKE_DFS_DEFERRED_FREE_SECONDS"); s != "0" {
		e.count("MOONCAKE_DFS_DEFERRED_FREE_SECONDS", 30, math.MaxInt32)
	}
	e.count("MOONCAKE_DFS_EVICTION_CHECK_INTERVAL", 5, math.MaxInt32)
}

// either returns the value of a key or of its older name, which the engine still reads.
func (e environment) either(key, older, fallback string) string {
	if s := e.text(key); s != "" {
		return s
	}
	if s := e.text(older); s != "" {
		e.m.problem(Note, older, "is the older name of "+key+"; Mooncake still reads it", "")
		return s
	}
	return fallback
}
