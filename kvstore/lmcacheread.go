package kvstore

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/kv3fs/kv3fs/internal/lmcachekeys"
)

// lmcacheMarks are the keys that only a file of LMCache's has.
var lmcacheMarks = []string{"chunk_size", "remote_storage_plugins", "remote_url", "extra_config"}

// isLMCache reports whether a file is one of LMCache's.
func isLMCache(given []setting) bool {
	return slices.ContainsFunc(given, func(s setting) bool { return slices.Contains(lmcacheMarks, s.key) })
}

const (
	defaultChunkTokens = 256

	ofLMCachesEngine = "it is a setting of LMCache's engine, not of its files"
)

// ofLMCache reads a file of LMCache's that names its 3FS connector or its FS connector.
// LMCache computes the size of a chunk from its model, which the file does not name.
func ofLMCache(top []setting) (c UCMConfig, notes []string, err error) {
	f := lmcacheFile{to: &LMCacheOptions{}, extra: map[string]setting{}}
	c.StorePipeline, c.LMCache = lmcacheName, f.to
	c.Namespace.BlockTokens = defaultChunkTokens
	for _, s := range top {
		if err := f.readTop(s, &c); err != nil {
			return c, nil, err
		}
	}
	if err := f.where(); err != nil {
		return c, nil, err
	}
	if err := f.readExtra(); err != nil {
		return c, nil, err
	}
	slices.Sort(f.notes)
	return c, f.notes, nil
}

// lmcacheFile is a file of LMCache's that is being read.
type lmcacheFile struct {
	to    *LMCacheOptions
	extra map[string]setting
	notes []string

	url     *setting
	plugins []string
	plugin  string // of the two kinds that keep files, with its name: hf3fs.primary
	kind    string // hf3fs or fs
}

func (f *lmcacheFile) note(key, why string) {
	f.notes = append(f.notes, key+" has no effect here: "+why)
}

// readTop reads a key outside extra_config.
func (f *lmcacheFile) readTop(s setting, c *UCMConfig) (err error) {
	switch s.key {
	case "chunk_size":
		var n int64
		n, err = s.number()
		c.Namespace.BlockTokens = int(n)
	case "blocking_timeout_secs":
		var n int64
		n, err = s.number()
		c.TimeoutMs = int(n) * 1000
	case "remote_url":
		f.url = &s
	case "remote_storage_plugins":
		f.plugins, err = s.list()
	case "extra_config":
		var all []setting
		if all, err = mapping(s.value); err != nil {
			return s.errorf("has no keys: %w", err)
		}
		for _, e := range all {
			f.extra[e.key] = e
		}
	case "remote_serde":
		text, failed := s.text()
		if failed == nil && text != "naive" {
			return s.errorf("is %.40q: only naive leaves the bytes of chunks as they are", text)
		}
		err = failed
	case "use_layerwise":
		is, failed := s.flag()
		if is {
			return s.errorf("is true: a block is then one layer of a chunk; open a store for each with LMCacheOptions.Layer")
		}
		err = failed
	case "pre_caching_hash_algorithm":
		f.note(s.key, "keys.NewLMCacheChain takes it")
	default:
		if slices.Contains(gdsKeys, s.key) {
			f.note(s.key, "it is a setting of LMCache's GDS backend, which has no gds_path here")
			return nil
		}
		if near := didYouMean(s.key, append([]string{"remote_serde", "blocking_timeout_secs"}, lmcacheMarks...)); near != "" {
			return fmt.Errorf("line %d: unknown key %.60q%s", s.line, s.key, near)
		}
		if err = s.check(); err != nil {
			return err
		}
		f.note(s.key, ofLMCachesEngine)
	}
	return err
}

// where finds the connector and its base paths.
func (f *lmcacheFile) where() error {
	if f.url != nil && len(f.plugins) == 0 {
		return f.fromURL()
	}
	for _, plugin := range f.plugins {
		kind, _, _ := strings.Cut(plugin, ".")
		if kind != "hf3fs" && kind != "fs" {
			f.note("remote_storage_plugins", "of "+plugin+": it keeps no files; only hf3fs and fs do")
			continue
		}
		if f.plugin != "" {
			return fmt.Errorf("remote_storage_plugins has %s and %s; write one of them, the store has one place", f.plugin, plugin)
		}
		f.plugin, f.kind = plugin, kind
	}
	if f.plugin == "" {
		return errors.New("it names neither LMCache's 3FS connector nor its FS connector; write remote_storage_plugins: [\"hf3fs.primary\"] or remote_url: \"hf3fs:///mnt/3fs/lmcache\"")
	}
	if f.url != nil {
		f.note("remote_url", "remote_storage_plugins is given as well")
	}
	for _, key := range []string{"remote_storage_plugin." + f.plugin + ".base_path", f.kind + "_base_path"} {
		if s, ok := f.extra[key]; ok {
			delete(f.extra, key)
			text, err := s.text()
			if err != nil {
				return err
			}
			return f.basePaths(s, text)
		}
	}
	return fmt.Errorf("extra_config has no remote_storage_plugin.%s.base_path and no %s_base_path; write one", f.plugin, f.kind)
}

func (f *lmcacheFile) fromURL() error {
	text, err := f.url.text()
	if err != nil {
		return err
	}
	scheme, rest, _ := strings.Cut(text, "://")
	switch scheme {
	case "hf3fs":
	case "fs": // a host comes first, which LMCache does not use
		slash := strings.Index(rest, "/")
		if slash < 0 {
			return f.url.errorf("is %.60q; write fs://host:0/ and the path", text)
		}
		rest = rest[slash:]
	default:
		return f.url.errorf("is %.60q; only hf3fs:// and fs:// keep files", text)
	}
	f.kind, f.plugin = scheme, scheme
	return f.basePaths(*f.url, rest)
}

func (f *lmcacheFile) basePaths(s setting, list string) error {
	var err error
	f.to.BasePaths, err = s.dirs(list)
	return err
}

// readExtra reads what is left of extra_config.
func (f *lmcacheFile) readExtra() error {
	if f.kind == "hf3fs" {
		if err := f.mountPoint(); err != nil {
			return err
		}
	}
	for _, s := range f.extra {
		if err := f.readExtraKey(s); err != nil {
			return err
		}
	}
	return nil
}

// isBelow reports whether a path is a directory or below it; both are absolute and clean.
func isBelow(path, dir string) bool {
	rest, below := strings.CutPrefix(path, strings.TrimSuffix(dir, "/"))
	return below && (rest == "" || rest[0] == '/')
}

// mountPoint checks hf3fs_mount_point as LMCache does. The store finds the mount by itself.
func (f *lmcacheFile) mountPoint() error {
	s, ok := f.extra["hf3fs_mount_point"]
	if !ok {
		return errors.New("extra_config has no hf3fs_mount_point; write where the 3FS is mounted")
	}
	delete(f.extra, "hf3fs_mount_point")
	mount, err := s.mountPoint()
	if err != nil {
		return err
	}
	for _, dir := range f.to.BasePaths {
		if !isBelow(dir, mount) {
			return s.errorf("is %s, and base path %s is not below it", mount, dir)
		}
	}
	return nil
}

// extraKeys are the keys of extra_config that concern files.
var extraKeys = []string{
	"hf3fs_base_path", "fs_base_path", "hf3fs_mount_point", "hf3fs_iov_size", "hf3fs_ior_entries", "hf3fs_io_depth", "hf3fs_numa_id", "hf3fs_io_thread_num",
	"save_chunk_meta", "fs_connector_relative_tmp_dir", "fs_connector_read_ahead_size", "fs_connector_use_odirect",
}

func (f *lmcacheFile) readExtraKey(s setting) (err error) {
	var n int64
	switch s.key {
	case "hf3fs_iov_size":
		f.to.BufferBytes, err = s.number()
	case "hf3fs_ior_entries":
		n, err = s.number()
		f.to.RingEntries = int(n)
	case "hf3fs_io_depth":
		if n, err = s.number(); n != 0 && err == nil {
			f.note(s.key, "requests are submitted as they come; in LMCache it has none either")
		}
	case "hf3fs_numa_id":
		if n, err = s.number(); n >= 0 && err == nil {
			node := int(n)
			f.to.NUMANode = &node
		}
	case "hf3fs_io_thread_num":
		n, err = s.number()
		f.to.Rings = int(n)
	case "save_chunk_meta":
		var is bool
		is, err = s.flag()
		f.to.NoChunkMeta = !is
	case "fs_connector_use_odirect":
		f.to.DirectIO, err = s.flag()
	case "fs_connector_relative_tmp_dir":
		f.to.RelativeTmpDir, err = s.text()
		if err == nil && !filepath.IsLocal(f.to.RelativeTmpDir) {
			return s.errorf("is %.60q; write a path below the base path, such as tmp", f.to.RelativeTmpDir)
		}
	case "fs_connector_read_ahead_size":
		if err = s.check(); err == nil {
			f.note(s.key, "a load reads whole shards at once")
		}
	case "hf3fs_base_path", "fs_base_path", "hf3fs_mount_point":
		f.note(s.key, "it is not what says where the files of "+f.plugin+" are")
	default:
		if strings.HasPrefix(s.key, "hf3fs_") || strings.HasPrefix(s.key, "hfs3fs_") || strings.HasPrefix(s.key, "fs_") || didYouMean(s.key, slices.Clone(extraKeys)) != "" {
			return s.unknown(slices.Clone(extraKeys))
		}
		f.note(s.key, ofLMCachesEngine)
	}
	return err
}

// number reads the whole number of a key of LMCache's.
func (s setting) number() (int64, error) { return readValue(s, lmcachekeys.Number) }

// flag reads the flag of a key of LMCache's.
func (s setting) flag() (bool, error) { return readValue(s, lmcachekeys.Flag) }

// check checks the value of a key of LMCache's that is not used here.
func (s setting) check() error { return s.checkBy(lmcachekeys.Check) }

func (s setting) list() ([]string, error) {
	nodes, ok := s.value.(*ast.SequenceNode)
	if !ok {
		return nil, s.errorf("is not a list; write one, such as [\"hf3fs.primary\"]")
	}
	var all []string
	for _, node := range nodes.Values {
		text, err := setting{s.key, node, s.line}.text()
		if err != nil {
			return nil, err
		}
		all = append(all, text)
	}
	return all, nil
}
