package engineconfig

import (
	"bytes"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/shellwords"
)

// Bounds that LMCache itself enforces, in both of its 3FS clients.
func lmcacheIov() bounds {
	return bounds{fallback: lmcacheIovBytes, min: 100 * mib, max: 2 * gib}
}
func lmcacheRing() bounds  { return bounds{fallback: lmcacheEntries, min: 128, max: 1024} }
func lmcacheDepth() bounds { return bounds{min: -128, max: 128} }
func numaNode() bounds     { return bounds{fallback: -1, min: -1, max: 1023} }

// readLMCache reads one of LMCache's two kinds of configuration: the YAML of the remote
// connector, or the JSON or command line of the multi-process server.
func readLMCache(out *Config, content []byte, _ Params, env func(string) (string, bool)) error {
	if bytes.Contains(content, []byte("--l2-adapter")) {
		return readLMCacheCommand(out, string(content))
	}
	if trimmed := bytes.TrimSpace(content); bytes.HasPrefix(trimmed, []byte("{")) {
		values, err := decodeJSON(trimmed)
		if err != nil {
			return err
		}
		if values["type"] != nil {
			readL2Adapter(newMapping(values, "", out))
			return nil
		}
	}
	top, extra, err := lmcacheSettings(out, content, env)
	if err != nil {
		return err
	}
	readRemote(top, extra)
	return nil
}

func readRemote(top, extra *mapping) {
	out := top.out
	out.MakesPaths = true
	lmcacheGenericKeys(top)

	if extra.has("hf3fs_mount_point") || usesRings(top) {
		out.Mount = mountOf(extra, "hf3fs_mount_point", true)
	}
	connectors := readRemotePaths(top, extra)

	threads := int(extra.number("hf3fs_io_thread_num", bounds{fallback: lmcacheThreads, min: 2, max: 16}))
	iov := extra.number("hf3fs_iov_size", lmcacheIov())
	entries := int(extra.number("hf3fs_ior_entries", lmcacheRing()))
	extra.number("hf3fs_numa_id", numaNode())
	if extra.number("hf3fs_io_depth", lmcacheDepth()) != 0 {
		extra.problem(Warning, "hf3fs_io_depth", "is checked and stored by LMCache but never reaches the ring, whose depth stays 0", "remove it; 0 is right for one request at a time")
	}
	extra.flag("save_chunk_meta", true)
	extra.number("fs_connector_read_ahead_size", bounds{min: 1, max: math.MaxInt64})
	if extra.flag("fs_connector_use_odirect", false) && extra.flag("save_chunk_meta", true) {
		extra.problem(Note, "fs_connector_use_odirect", "is turned off by LMCache, which writes a header before each chunk", "write save_chunk_meta: false as well")
	}
	if dir := extra.text("fs_connector_relative_tmp_dir"); strings.HasPrefix(dir, "/") {
		extra.problem(Failure, "fs_connector_relative_tmp_dir", "is an absolute path", "write a path relative to the base path, such as tmp")
	}
	extra.unknown(about3FS)
	misplaced(top, extra)
	top.unknown(about3FS)

	n := lmcacheNeed(Params{Clients: threads, BufferBytes: iov, Entries: entries})
	instances := max(connectors.rings, 1)
	n.ShmBytesPerRank = product(n.ShmBytesPerRank, int64(instances))
	n.Rings, n.Iovs, n.OpenFiles = n.Rings*instances, n.Iovs*instances, n.OpenFiles*instances
	n.HashSeed = seedNeeded(top)
	if connectors.rings == 0 && connectors.files > 0 {
		n = n.withoutRings()
	}
	out.Need = n
}

// usesRings reports whether a configuration names the connector hf3fs, or none: then it is
// what is missing.
func usesRings(top *mapping) bool {
	url, plugins := top.text("remote_url"), top.words("remote_storage_plugins")
	named := func(kind string) bool {
		return strings.HasPrefix(url, kind+"://") || slices.ContainsFunc(plugins, func(p string) bool { return p == kind || strings.HasPrefix(p, kind+".") })
	}
	return named("hf3fs") || !named("fs")
}

// mountOf reads the mount point, which is required.
func mountOf(m *mapping, key string, exact bool) string {
	mount := m.text(key)
	if mount == "" && !m.has(key) {
		m.problem(Failure, key, "is missing", "write the mount point, such as /mnt/3fs")
		return ""
	}
	if mount == "" {
		return ""
	}
	checkMount(m, key, mount, exact)
	return path.Clean(mount)
}

// remote is what the configuration makes LMCache's remote backend of.
type remote struct{ rings, files int } // connectors of each kind

// readRemotePaths finds the base paths, in both forms of the configuration, and counts
// the connectors that LMCache will create: hf3fs with rings, fs with ordinary file calls.
func readRemotePaths(top, extra *mapping) (found remote) {
	paths := func(m *mapping, key string, list []string, mount string) {
		if len(list) == 0 {
			m.problem(Failure, key, "names no base path", "write a directory below the mount point")
		}
		for _, p := range list {
			checkBase(m, key, p, mount)
			top.out.BasePaths = append(top.out.BasePaths, path.Clean(p))
		}
	}
	plugins := top.words("remote_storage_plugins")
	for _, plugin := range plugins[:min(len(plugins), maxUnknown)] {
		kind, name, _ := strings.Cut(plugin, ".")
		if kind != "hf3fs" && kind != "fs" {
			continue
		}
		if name == "" {
			top.problem(Failure, "remote_storage_plugins", fmt.Sprintf("names %q without an instance", plugin), fmt.Sprintf("write %q", kind+".primary"))
			found.add(kind)
			continue
		}
		key, mount := "remote_storage_plugin."+plugin+".base_path", ""
		list := extra.words(key)
		if fallback := extra.words(kind + "_base_path"); len(list) == 0 {
			key, list = kind+"_base_path", fallback
		}
		if kind == "hf3fs" {
			mount = top.out.Mount
		}
		paths(extra, key, list, mount)
		found.add(kind)
	}
	url := top.text("remote_url")
	kind, rest, isURL := strings.Cut(url, "://")
	switch {
	case isURL && kind == "hf3fs":
		top.problem(Note, "remote_url", "is LMCache's older way to name a 3FS; it still works", `newer: remote_storage_plugins: ["hf3fs.primary"] and extra_config remote_storage_plugin.hf3fs.primary.base_path`)
		paths(top, "remote_url", splitList(rest), top.out.Mount)
		if found.rings > 0 {
			top.problem(Warning, "remote_url", "and remote_storage_plugins both name a 3FS; LMCache makes a connector for each", "keep one")
		}
		found.add(kind)
	case isURL && kind == "fs":
		_, dir, _ := strings.Cut(rest, "/") // the host before it does nothing
		list := splitList(dir)
		if len(list) > 0 {
			list[0] = "/" + list[0]
		}
		paths(top, "remote_url", list, "")
		found.add(kind)
	case found == remote{}:
		key, what := "remote_storage_plugins", "nothing here stores on a 3FS"
		if url != "" {
			key, what = "remote_url", fmt.Sprintf("%.80q does not store on a 3FS", url)
		}
		fix := `write remote_storage_plugins: ["hf3fs.primary"] and extra_config remote_storage_plugin.hf3fs.primary.base_path`
		if top.nameOf(key) != key {
			fix = `export LMCACHE_REMOTE_STORAGE_PLUGINS=hf3fs.primary LMCACHE_EXTRA_CONFIG='{"hf3fs_mount_point": "/mnt/3fs", "hf3fs_base_path": "/mnt/3fs/lmcache"}'`
		}
		top.problem(Failure, key, what, fix)
	}
	if found.files > 0 {
		top.problem(Note, "", "the connector fs uses ordinary file calls, not rings; on a 3FS, hf3fs is faster", "")
	}
	return found
}

func (r *remote) add(kind string) {
	if kind == "hf3fs" {
		r.rings++
	} else {
		r.files++
	}
}

// misplaced reports keys of the connector that are outside extra_config.
func misplaced(top, extra *mapping) {
	for key := range extra.known {
		if about3FS(key) && top.values[key] != nil {
			top.known[key] = true
			top.problem(Warning, key, "is read only below extra_config; here it does nothing", "move it below extra_config:")
		}
	}
}

// lmcacheGenericKeys checks the keys, common to all LMCache backends, that matter for
// storage.
func lmcacheGenericKeys(top *mapping) {
	top.number("chunk_size", bounds{fallback: 256, min: 1, max: maxCount})
	top.flag("local_cpu", true)
	top.number("blocking_timeout_secs", bounds{fallback: 10, min: 1, max: math.MaxInt32})
	for _, key := range []string{"max_local_cpu_size", "remote_serde", "use_layerwise", "save_unfull_chunk", "pre_caching_hash_algorithm", "use_exists_sync", "extra_config"} {
		top.has(key)
	}
}

// seedNeeded reports whether chunks are named by Python's own hash, which differs from
// process to process unless PYTHONHASHSEED is set.
func seedNeeded(top *mapping) bool {
	algorithm := top.text("pre_caching_hash_algorithm")
	return algorithm == "" || algorithm == "builtin"
}

// readLMCacheCommand reads the command line of LMCache's multi-process server.
func readLMCacheCommand(out *Config, text string) error {
	words, err := shellwords.Split(text)
	if err != nil {
		return err
	}
	adapters := flagValues(words, "--l2-adapter")
	if len(adapters) == 0 {
		return fmt.Errorf("has --l2-adapter without a value")
	}
	found := false
	for _, a := range adapters {
		values, err := decodeJSON([]byte(a))
		if err != nil {
			return fmt.Errorf("--l2-adapter %w", err)
		}
		if kind, _ := values["type"].(string); kind == "hf3fs" && !found {
			found = true
			readL2Adapter(newMapping(values, "", out))
		}
	}
	if !found {
		out.add(Failure, "--l2-adapter", "names no adapter of type hf3fs", `write {"type": "hf3fs", "mount_point": ..., "base_paths": ...}`)
	}
	return nil
}

func readL2Adapter(m *mapping) {
	out := m.out
	if kind := m.text("type"); kind != "hf3fs" {
		m.problem(Failure, "type", fmt.Sprintf("%.80q is not the 3FS adapter", kind), `write "hf3fs"`)
	}
	out.Mount = mountOf(m, "mount_point", true)
	list := splitList(m.text("base_paths"))
	if len(list) == 0 {
		m.problem(Failure, "base_paths", "names no directory", "write one or more directories below the mount point, separated by commas")
	}
	for _, p := range list {
		checkBase(m, "base_paths", p, out.Mount)
		out.BasePaths = append(out.BasePaths, path.Clean(p))
	}
	workers := int(m.number("num_workers", bounds{fallback: lmcacheThreads, min: 1, max: 1024}))
	entries := int(m.number("ior_entries", lmcacheRing()))
	iov := m.number("iov_size", lmcacheIov())
	if depth := m.number("io_depth", lmcacheDepth()); depth != 0 {
		what := fmt.Sprintf("is %d; part of a batch may then wait, forever on upstream's 3FS, for 200 ms on kv3fs", depth)
		if depth > 0 {
			what = fmt.Sprintf("is %d: requests start only in batches of exactly that many, so the rest of a batch may never start", depth)
		}
		m.problem(Warning, "io_depth", what, "write 0")
	}
	m.number("numa_id", numaNode())
	m.flag("enable_key_buffer", true)
	m.child("per_op_workers")
	for _, key := range []string{"eviction", "serde", "max_capacity_gb"} {
		m.has(key) // keys of all adapters
	}
	m.unknown(all)
	out.Need = lmcacheMPNeed(Params{Clients: workers, BufferBytes: iov, Entries: entries})
}
