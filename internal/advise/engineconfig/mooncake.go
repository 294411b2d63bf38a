package engineconfig

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
)

// readMooncake reads the environment of Mooncake's master or client.
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
	if !enabled {
		m.problem(Failure, "MOONCAKE_ENABLE_DFS", "is not true, so nothing is stored on a file system", "write MOONCAKE_ENABLE_DFS=true")
	}
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
	shards := e.count("MOONCAKE_DFS_SHARD_COUNT", mooncakeShards, maxCount)
	capacity := e.count("MOONCAKE_DFS_SHARD_CAPACITY", mooncakeShardBytes, math.MaxInt64)
	alignment := e.count("MOONCAKE_DFS_ALIGNMENT", 4096, 1<<40)
	if alignment&(alignment-1) != 0 {
		m.problem(Failure, "MOONCAKE_DFS_ALIGNMENT", fmt.Sprintf("is %d, not a power of two", alignment), "write 4096")
	} else if capacity%alignment != 0 {
		m.problem(Failure, "MOONCAKE_DFS_SHARD_CAPACITY", fmt.Sprintf("is %d, not a multiple of the alignment %d", capacity, alignment), "write bytes, such as 4294967296")
	}
	if e.text("MOONCAKE_DFS_SINGLE_TENANT") != "" && !e.boolean("MOONCAKE_DFS_SINGLE_TENANT") {
		m.problem(Failure, "MOONCAKE_DFS_SINGLE_TENANT", "is not true, which Mooncake requires", "write true")
	}
	readMooncakeEviction(e)
	for _, key := range []string{"MOONCAKE_DISTRIBUTED_HEALTH_CHECK", "MOONCAKE_OFFLOAD_ENABLED", "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR",
		"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "MOONCAKE_MASTER"} {
		m.known[key] = true
	}
	if dir := e.text("MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"); dir != "" && path.Clean(dir) != path.Clean(root) {
		m.problem(Note, "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH", "differs from MOONCAKE_DFS_ROOT_DIR", "")
	}
	m.unknown(func(key string) bool { return strings.HasPrefix(key, "MOONCAKE_DFS_") })

	out.Need = mooncakeNeed(Params{Entries: int(shards), FileBytes: capacity})
	out.Need.Rings3FS = rings
	if !rings {
		out.Need.ShmBytesPerRank, out.Need.Rings, out.Need.Iovs = 0, 0, 0
	}
	return nil
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
	low, high := share("MOONCAKE_DFS_LOW_WATERMARK", 0.7), share("MOONCAKE_DFS_HIGH_WATERMARK", 0.9)
	if low >= high {
		m.problem(Failure, "MOONCAKE_DFS_LOW_WATERMARK", fmt.Sprintf("is %g, not below the high one, %g", low, high), "write 0.7 and 0.9")
	}
	if s := e.text("MOONCAKE_DFS_DEFERRED_FREE_SECONDS"); s != "0" {
		e.count("MOONCAKE_DFS_DEFERRED_FREE_SECONDS", 30, math.MaxInt32)
	}
	e.count("MOONCAKE_DFS_EVICTION_CHECK_INTERVAL", 5, math.MaxInt32)
}

// either returns the value of a key or of its older name.
func (e environment) either(key, older, fallback string) string {
	if s := e.text(key); s != "" {
		e.m.known[older] = true
		return s
	}
	if s := e.text(older); s != "" {
		e.m.problem(Note, older, "is the older name of "+key, "write "+key)
		return s
	}
	return fallback
}
