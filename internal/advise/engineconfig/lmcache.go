package engineconfig

import (
	"bytes"
	"fmt"
	"math"
	"path"
	"slices"
	"strings"
)

const hf3fsScheme = "hf3fs://"

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
	values, err := decodeYAML(content)
	if err != nil {
		return err
	}
	top := newMapping(values, "", out)
	extra, err := lmcacheExtra(top, env)
	if err != nil {
		return err
	}
	readRemote(top, extra)
	return nil
}

// lmcacheExtra returns extra_config, overridden by the environment.
func lmcacheExtra(top *mapping, env func(string) (string, bool)) (*mapping, error) {
	extra := top.child("extra_config")
	text, ok := env("LMCACHE_EXTRA_CONFIG")
	if !ok || strings.TrimSpace(text) == "" {
		return extra, nil
	}
	err := checkText([]byte(text))
	var over map[string]any
	if err == nil {
		over, err = decodeJSON([]byte(text))
	}
	if err != nil {
		return nil, fmt.Errorf("LMCACHE_EXTRA_CONFIG %w", err)
	}
	if extra.values == nil {
		return newMapping(over, "LMCACHE_EXTRA_CONFIG.", top.out), nil
	}
	top.problem(Note, "extra_config", "is in the file and in LMCACHE_EXTRA_CONFIG; this check assumes that the environment overrides the file", "keep it in one place")
	for key, v := range over {
		extra.values[key] = v
	}
	return extra, nil
}

func readRemote(top, extra *mapping) {
	out := top.out
	out.MakesPaths = true
	lmcacheGenericKeys(top)

	out.Mount = mountOf(extra, "hf3fs_mount_point", true)
	clients := readRemotePaths(top, extra)

	threads := int(extra.number("hf3fs_io_thread_num", bounds{fallback: lmcacheThreads, min: 2, max: 16}))
	iov := extra.number("hf3fs_iov_size", lmcacheIov())
	entries := int(extra.number("hf3fs_ior_entries", lmcacheRing()))
	extra.number("hf3fs_numa_id", numaNode())
	if extra.number("hf3fs_io_depth", lmcacheDepth()) != 0 {
		extra.problem(Warning, "hf3fs_io_depth", "is checked and stored by LMCache but never reaches the ring, whose depth stays 0", "remove it; 0 is right for one request at a time")
	}
	extra.flag("save_chunk_meta", true)
	if dir := extra.text("fs_connector_relative_tmp_dir"); strings.HasPrefix(dir, "/") {
		extra.problem(Failure, "fs_connector_relative_tmp_dir", "is an absolute path", "write a path relative to the base path, such as tmp")
	}
	extra.unknown(about3FS)
	misplaced(top, extra)
	top.unknown(about3FS)

	n := lmcacheNeed(Params{Clients: threads, BufferBytes: iov, Entries: entries})
	instances := max(clients, 1)
	n.ShmBytesPerRank = product(n.ShmBytesPerRank, int64(instances))
	n.Rings, n.Iovs, n.OpenFiles = n.Rings*instances, n.Iovs*instances, n.OpenFiles*instances
	n.HashSeed = seedNeeded(top)
	out.Need = n
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

// readRemotePaths finds the base paths, in both forms of the configuration, and counts
// the connectors that LMCache will create.
func readRemotePaths(top, extra *mapping) (connectors int) {
	out := top.out
	fallback := extra.words("hf3fs_base_path")
	paths := func(m *mapping, key string, list []string) {
		if len(list) == 0 {
			m.problem(Failure, key, "names no base path", "write a directory below the mount point")
		}
		for _, p := range list {
			checkBase(m, key, p, out.Mount)
			out.BasePaths = append(out.BasePaths, path.Clean(p))
		}
		connectors++
	}
	plugins := top.words("remote_storage_plugins")
	for i, plugin := range plugins {
		name, ok := strings.CutPrefix(plugin, "hf3fs.")
		switch {
		case plugin == "hf3fs" || ok && name == "":
			top.problem(Failure, "remote_storage_plugins", fmt.Sprintf("names %q without an instance", plugin), `write "hf3fs.primary"`)
		case ok && i < maxUnknown:
			key := "remote_storage_plugin." + plugin + ".base_path"
			if list := extra.words(key); len(list) > 0 {
				paths(extra, key, list)
			} else {
				paths(extra, "hf3fs_base_path", fallback)
			}
		}
	}
	url := top.text("remote_url")
	rest, isURL := strings.CutPrefix(url, hf3fsScheme)
	if isURL {
		top.problem(Note, "remote_url", "is LMCache's older way to name a 3FS; it still works", `newer: remote_storage_plugins: ["hf3fs.primary"] and extra_config remote_storage_plugin.hf3fs.primary.base_path`)
		paths(top, "remote_url", splitList(rest))
		if connectors > 1 {
			top.problem(Warning, "remote_url", "and remote_storage_plugins both name a 3FS; LMCache makes a connector for each", "keep one")
		}
	}
	if !isURL && !slices.ContainsFunc(plugins, func(p string) bool { return p == "hf3fs" || strings.HasPrefix(p, "hf3fs.") }) {
		key, what := "remote_storage_plugins", "nothing here stores on a 3FS through its rings"
		if url != "" {
			key, what = "remote_url", fmt.Sprintf("%.80q does not store through the rings of a 3FS", url)
		}
		top.problem(Failure, key, what, `write remote_storage_plugins: ["hf3fs.primary"] and extra_config remote_storage_plugin.hf3fs.primary.base_path`)
	}
	return connectors
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
	words, err := shellWords(text)
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
