package engineconfig

import (
	"bytes"
	"fmt"
	"path"
	"slices"
	"strings"
)

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

	threads := int(extra.lmcacheNumber("hf3fs_io_thread_num", lmcacheThreads))
	iov := extra.lmcacheNumber("hf3fs_iov_size", lmcacheIovBytes)
	entries := int(extra.lmcacheNumber("hf3fs_ior_entries", lmcacheEntries))
	extra.lmcacheCheck("hf3fs_numa_id")
	if extra.lmcacheNumber("hf3fs_io_depth", 0) != 0 {
		extra.problem(Warning, "hf3fs_io_depth", "is checked and stored by LMCache but never reaches the ring, whose depth stays 0", "remove it; 0 is right for one request at a time")
	}
	header := extra.lmcacheFlag("save_chunk_meta", true)
	extra.lmcacheCheck("fs_connector_read_ahead_size")
	if extra.lmcacheFlag("fs_connector_use_odirect", false) && header {
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
	for _, key := range []string{"chunk_size", "blocking_timeout_secs", "local_cpu", "use_layerwise", "save_unfull_chunk", "max_local_cpu_size"} {
		top.lmcacheCheck(key)
	}
	for _, key := range []string{"remote_serde", "pre_caching_hash_algorithm", "use_exists_sync", "extra_config"} {
		top.has(key)
	}
}

// seedNeeded reports whether chunks are named by Python's own hash, which differs from
// process to process unless PYTHONHASHSEED is set.
func seedNeeded(top *mapping) bool {
	algorithm := top.text("pre_caching_hash_algorithm")
	return algorithm == "" || algorithm == "builtin"
}
