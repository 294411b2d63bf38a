package engineconfig

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/shellwords"
)

// Types of the L2 adapters of LMCache's multi-process server that keep files: with rings, by
// Python's file calls, and by those of LMCache's own threads.
const (
	adapter3FS      = "hf3fs"
	adapterFS       = "fs"
	adapterFSNative = "fs_native"
)

// readLMCacheCommand reads the command line of LMCache's multi-process server: its first
// adapter for a 3FS, or else the first for files.
func readLMCacheCommand(out *Config, text string) error {
	words, err := shellwords.Split(text)
	if err != nil {
		return err
	}
	adapters := flagValues(words, "--l2-adapter")
	if len(adapters) == 0 {
		return errors.New("has --l2-adapter without a value")
	}
	first := map[string]map[string]any{}
	for _, a := range adapters {
		values, err := decodeJSON([]byte(a))
		if err != nil {
			return fmt.Errorf("--l2-adapter %w", err)
		}
		if kind, _ := values["type"].(string); first[kind] == nil {
			first[kind] = values
		}
	}
	for _, kind := range []string{adapter3FS, adapterFSNative, adapterFS} {
		if values := first[kind]; values != nil {
			readL2Adapter(newMapping(values, "", out))
			return nil
		}
	}
	out.add(Failure, "--l2-adapter", "names no adapter of type hf3fs, fs_native or fs", `write {"type": "hf3fs", "mount_point": "/mnt/3fs", "base_paths": "/mnt/3fs/lmcache"}`)
	return nil
}

func readL2Adapter(m *mapping) {
	kind := m.text("type")
	if kind == adapterFS || kind == adapterFSNative {
		readFSAdapter(m, kind)
		return
	}
	if kind != adapter3FS {
		m.problem(Failure, "type", fmt.Sprintf("%.80q is not the 3FS adapter, and keeps no files", kind), `write "hf3fs"`)
	}
	out := m.out
	out.Mount = mountOf(m, "mount_point", true)
	list := splitList(m.text("base_paths"))
	if len(list) == 0 {
		m.problem(Failure, "base_paths", "names no directory", "write one or more directories below the mount point, separated by commas")
	}
	for _, p := range list {
		checkBase(m, "base_paths", p, out.Mount)
		out.BasePaths = append(out.BasePaths, path.Clean(p))
	}
	workers := int(m.lmcacheNumber("num_workers", lmcacheThreads))
	entries := int(m.lmcacheNumber("ior_entries", lmcacheEntries))
	iov := m.lmcacheNumber("iov_size", lmcacheIovBytes)
	if depth := m.lmcacheNumber("io_depth", 0); depth != 0 {
		what := fmt.Sprintf("is %d; part of a batch may then wait, forever on upstream's 3FS, for 200 ms on kv3fs", depth)
		if depth > 0 {
			what = fmt.Sprintf("is %d: requests start only in batches of exactly that many, so the rest of a batch may never start", depth)
		}
		m.problem(Warning, "io_depth", what, "write 0")
	}
	m.lmcacheCheck("numa_id")
	m.lmcacheCheck("enable_key_buffer")
	m.child("per_op_workers")
	m.keysOfAllAdapters()
	out.Need = lmcacheMPNeed(Params{Clients: workers, BufferBytes: iov, Entries: entries})
}

// readFSAdapter reads an adapter that keeps files through ordinary file calls.
func readFSAdapter(m *mapping, kind string) {
	dir := m.text("base_path")
	if dir == "" {
		m.problem(Failure, "base_path", "names no directory", "write the absolute path of a directory")
	} else {
		checkBase(m, "base_path", dir, "")
		m.out.BasePaths, m.out.MakesPaths = []string{path.Clean(dir)}, true
	}
	if tmp := m.text("relative_tmp_dir"); strings.HasPrefix(tmp, "/") || slices.Contains(strings.Split(tmp, "/"), "..") {
		m.problem(Failure, "relative_tmp_dir", fmt.Sprintf("is %.80q", tmp), "write a path below the base path, such as tmp")
	}
	keys := []string{"read_ahead_size", "use_odirect"}
	workers := 1
	if kind == adapterFSNative {
		workers = int(m.lmcacheNumber("num_workers", lmcacheThreads))
		keys = append(keys, "read_io_depth", "read_max_bytes_in_flight", "hash_subdir_levels", "disk_high_watermark", "disk_min_free_gb")
	}
	for _, key := range append(keys, "recover_on_start", "max_capacity_gb") {
		m.lmcacheCheck(key)
	}
	m.keysOfAllAdapters()
	m.out.add(Note, "", "the adapter "+kind+" uses ordinary file calls, not rings; on a 3FS, hf3fs is faster", "")
	m.out.Need = Need{OpenFiles: 2 * workers, HashSeed: true, Packages: []Package{pip("lmcache", "lmcache")}}
}

// keysOfAllAdapters reads the keys that every adapter has, and reports others.
func (m *mapping) keysOfAllAdapters() {
	for _, key := range []string{"eviction", "serde", "max_capacity_gb"} {
		m.has(key)
	}
	m.unknown(all)
}
