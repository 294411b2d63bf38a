package kvstore

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"
)

// l2Adapters are the types of L2 adapters of LMCache's multi-process server that keep files.
var l2Adapters = []string{"hf3fs", "fs", "fs_native"}

// isL2Adapter reports whether a file is the JSON of such an adapter, the value of --l2-adapter.
func isL2Adapter(given []setting) bool {
	return slices.ContainsFunc(given, func(s setting) bool {
		text, err := s.text()
		return s.key == "type" && err == nil && slices.Contains(l2Adapters, text)
	})
}

// l2Keys are the keys of these adapters, with the types that have each; none means all.
var l2Keys = map[string][]string{
	"type": nil, "eviction": nil,
	"mount_point": {"hf3fs"}, "base_paths": {"hf3fs"}, "per_op_workers": {"hf3fs"}, "ior_entries": {"hf3fs"}, "io_depth": {"hf3fs"},
	"numa_id": {"hf3fs"}, "iov_size": {"hf3fs"}, "enable_key_buffer": {"hf3fs"},
	"base_path": {"fs", "fs_native"}, "relative_tmp_dir": {"fs", "fs_native"}, "read_ahead_size": {"fs", "fs_native"},
	"use_odirect": {"fs", "fs_native"}, "max_capacity_gb": {"fs", "fs_native"},
	"recover_on_start": {"fs"},
	"num_workers":      {"hf3fs", "fs_native"},
	"read_io_depth":    {"fs_native"}, "read_max_bytes_in_flight": {"fs_native"}, "hash_subdir_levels": {"fs_native"},
	"disk_high_watermark": {"fs_native"}, "disk_min_free_gb": {"fs_native"},
}

// ofL2Adapter reads an adapter of LMCache's multi-process server. The rank of the objects and
// their ids are not in it.
func ofL2Adapter(top []setting) (c UCMConfig, notes []string, err error) {
	f := l2File{to: &LMCacheOptions{Objects: &LMCacheObjects{}}}
	c.StorePipeline, c.LMCache = lmcacheName, f.to
	c.Namespace.BlockTokens = defaultChunkTokens
	for _, s := range top {
		if s.key == "type" {
			f.kind, _ = s.text()
		}
	}
	for _, s := range top {
		types, known := l2Keys[s.key]
		switch {
		case !known:
			var all []string
			for key := range l2Keys {
				all = append(all, key)
			}
			if didYouMean(s.key, slices.Clone(all)) != "" {
				return c, nil, s.unknown(all)
			}
			f.note(s.key, "it is a setting of LMCache's server, not of its files")
		case types != nil && !slices.Contains(types, f.kind):
			f.note(s.key, "adapters of type "+f.kind+" do not have it")
		default:
			if err := f.read(s.ofJSON()); err != nil {
				return c, nil, err
			}
		}
	}
	switch {
	case len(f.to.BasePaths) == 0 && f.kind == "hf3fs":
		return c, nil, errors.New("base_paths is missing; name the directories that hold the objects")
	case len(f.to.BasePaths) == 0:
		return c, nil, errors.New("base_path is missing; name the directory that holds the objects")
	case f.kind == "hf3fs" && f.mount == "":
		return c, nil, errors.New("mount_point is missing; write where the 3FS is mounted")
	}
	for _, dir := range f.to.BasePaths {
		if f.mount != "" && !isBelow(dir, f.mount) {
			return c, nil, fmt.Errorf("mount_point is %s, and base path %s is not below it", f.mount, dir)
		}
	}
	slices.Sort(f.notes)
	return c, f.notes, nil
}

// ofJSON is a setting of a JSON file: 1e3 is a number there, and a text in YAML.
func (s setting) ofJSON() setting {
	text, ok := s.value.(*ast.StringNode)
	if !ok || text.Token.Type != token.StringType {
		return s
	}
	if n, err := strconv.ParseFloat(text.Value, 64); err == nil && !math.IsInf(n, 0) && !math.IsNaN(n) {
		decimal := strconv.FormatFloat(n, 'f', -1, 64)
		if !strings.Contains(decimal, ".") {
			decimal += ".0" // it stays no whole number, as in JSON
		}
		s.value = ast.Float(token.New(decimal, decimal, text.Token.Position))
	}
	return s
}

// l2File is the configuration of an adapter that is being read.
type l2File struct {
	to    *LMCacheOptions
	kind  string
	mount string
	notes []string
}

func (f *l2File) note(key, why string) {
	f.notes = append(f.notes, key+" has no effect here: "+why)
}

// read reads a key that adapters of this type have.
func (f *l2File) read(s setting) (err error) {
	var n int64
	switch s.key {
	case "base_path":
		var dir string
		dir, err = s.dir()
		f.to.BasePaths = []string{dir}
	case "base_paths":
		var text string
		if text, err = s.text(); err == nil {
			f.to.BasePaths, err = s.dirs(text)
		}
	case "mount_point":
		f.mount, err = s.mountPoint()
	case "num_workers":
		n, err = s.number()
		if f.kind == "hf3fs" {
			f.to.Rings = int(min(n, mostRings))
		} else {
			f.to.Transfers = int(n)
		}
	case "ior_entries":
		n, err = s.number()
		f.to.RingEntries = int(n)
	case "io_depth":
		if n, err = s.number(); n != 0 && err == nil {
			f.note(s.key, "requests are submitted as they come")
		}
	case "numa_id":
		if n, err = s.number(); n >= 0 && err == nil {
			node := int(n)
			f.to.NUMANode = &node
		}
	case "iov_size":
		f.to.BufferBytes, err = s.number()
	case "relative_tmp_dir":
		f.to.RelativeTmpDir, err = s.text()
		if err == nil && !filepath.IsLocal(f.to.RelativeTmpDir) {
			err = s.errorf("is %.60q; write a path below the base path, such as tmp", f.to.RelativeTmpDir)
		}
	case "use_odirect":
		f.to.DirectIO, err = s.flag()
	case "hash_subdir_levels":
		n, err = s.number()
		f.to.HashSubdirLevels = int(n)
	case "type":
	default:
		if err = s.check(); err == nil {
			f.note(s.key, l2Ignored[s.key])
		}
	}
	return err
}

const noEviction = "this store evicts nothing; LMCache's server does"

// l2Ignored says why keys have no effect.
var l2Ignored = map[string]string{
	"read_ahead_size": "a load reads whole shards at once",
	"read_io_depth":   "num_workers is how many reads run at once", "read_max_bytes_in_flight": "num_workers is how many reads run at once",
	"enable_key_buffer": "a lookup asks the file system", "per_op_workers": "num_workers is for all operations",
	"recover_on_start": noEviction, "max_capacity_gb": noEviction, "disk_min_free_gb": noEviction, "disk_high_watermark": noEviction, "eviction": noEviction,
}

// dir reads an absolute path.
func (s setting) dir() (string, error) {
	text, err := s.text()
	if err == nil && !filepath.IsAbs(text) {
		err = s.errorf("is %.60q; write an absolute path", text)
	}
	return filepath.Clean(text), err
}

// dirs reads absolute paths with commas between them.
func (s setting) dirs(list string) (all []string, err error) {
	for dir := range strings.SplitSeq(list, ",") {
		dir = strings.TrimSpace(dir)
		if !filepath.IsAbs(dir) {
			return nil, s.errorf("has the base path %.60q; write absolute paths with commas between them", dir)
		}
		all = append(all, filepath.Clean(dir))
	}
	return all, nil
}

// mountPoint reads a mount point, which LMCache compares with that of the library.
func (s setting) mountPoint() (string, error) {
	mount, err := s.text()
	if err == nil && (!filepath.IsAbs(mount) || filepath.Clean(mount) != mount) {
		err = s.errorf("is %.60q; LMCache compares it byte by byte with the mount point: write that, without a slash at the end", mount)
	}
	return mount, err
}
