package kvstore

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// isGDS reports whether a file of LMCache's has its GDS backend: a directory for it, or its
// other keys and no connector.
func isGDS(given []setting) bool {
	has := func(keys ...string) bool {
		return slices.ContainsFunc(given, func(s setting) bool { return slices.Contains(keys, s.key) })
	}
	return has("gds_path") || has("gds_buffer_size", "cufile_buffer_size", "gds_backend") && !has(connectorKeys...)
}

// connectorKeys name LMCache's connectors.
var connectorKeys = []string{"remote_url", "remote_storage_plugins"}

// gdsKeys are the keys of LMCache that concern its GDS backend.
var gdsKeys = []string{
	"chunk_size", "gds_path", "gds_path_sharding", "gds_buffer_size", "cufile_buffer_size", "use_gds", "gds_backend", "extra_config",
	"use_cufile", "use_hipfile", "use_direct_io", "disk_io_threads", "gds_io_threads",
}

// ofGDS reads a file of LMCache's with its GDS backend. LMCache computes the size of a chunk
// from its model, which the file does not name.
func ofGDS(top []setting) (c UCMConfig, notes []string, err error) {
	f := gdsFile{to: &GdsOptions{}}
	c.StorePipeline, c.Gds = gdsName, f.to
	c.Namespace.BlockTokens = defaultChunkTokens
	for _, s := range top {
		if s.key == "chunk_size" {
			n, err := s.number()
			if err != nil {
				return c, nil, err
			}
			c.Namespace.BlockTokens = int(n)
			continue
		}
		if err := f.read(s, false); err != nil {
			return c, nil, err
		}
	}
	if len(f.to.Dirs) == 0 {
		return c, nil, fmt.Errorf("gds_path is missing; name the directories that hold the blocks")
	}
	slices.Sort(f.notes)
	return c, f.notes, nil
}

// gds returns what a file of LMCache's has set, or what the keys set that other stores have as
// well.
func (c *UCMConfig) gds() (*GdsOptions, error) {
	if c.Gds != nil {
		o := *c.Gds
		return &o, nil
	}
	dirs, err := c.backends()
	return &GdsOptions{
		Dirs: dirs, DirectIO: c.direct(), Transfers: c.StreamNumber, WaitingTransfers: c.WaitingQueueDepth, AcceptedShards: c.RunningQueueDepth,
	}, err
}

// gdsFile is a file of LMCache's that is being read.
type gdsFile struct {
	to    *GdsOptions
	notes []string
}

func (f *gdsFile) note(key, why string) {
	f.notes = append(f.notes, key+" has no effect here: "+why)
}

// read reads a key, of extra_config or outside of it.
func (f *gdsFile) read(s setting, extra bool) (err error) {
	var n int64
	var is bool
	switch s.key {
	case "gds_path":
		return f.dirs(s)
	case "gds_path_sharding":
		return s.word("by_gpu")
	case "gds_backend":
		return s.word("cufile", "hipfile")
	case "gds_buffer_size", "cufile_buffer_size":
		n, err = s.number()
		f.to.BufferBytes = n << 20
	case "use_gds", "use_cufile":
		is, err = s.flag()
		f.to.NoDirect = f.to.NoDirect || !is
	case "use_direct_io":
		f.to.DirectIO, err = s.flag()
	case "disk_io_threads", "gds_io_threads":
		n, err = s.number()
		f.to.Transfers = int(n)
	case "max_alloc_attempts", "allocation_attempt_delay_secs":
		if err = s.check(); err == nil {
			f.note(s.key, "shards are in the caller's memory")
		}
	case "extra_config":
		if extra {
			return s.unknown(slices.Clone(gdsKeys))
		}
		all, err := mapping(s.value)
		if err != nil {
			return s.errorf("has no keys: %w", err)
		}
		for _, e := range all {
			if err := f.read(e, true); err != nil {
				return err
			}
		}
	case "remote_url", "remote_storage_plugins":
		f.note(s.key, "LMCache asks its GDS backend first; to open the connector's files, remove gds_path")
	default:
		if slices.Contains(extraKeys, s.key) {
			f.note(s.key, "it is a setting of LMCache's connectors")
			return nil
		}
		if didYouMean(s.key, slices.Clone(gdsKeys)) != "" || strings.HasPrefix(s.key, "gds_") || strings.HasPrefix(s.key, "cufile_") {
			return s.unknown(slices.Clone(gdsKeys))
		}
		if err = s.check(); err == nil {
			f.note(s.key, ofLMCachesEngine)
		}
	}
	return err
}

// dirs reads gds_path: a text with commas, or a list.
func (f *gdsFile) dirs(s setting) error {
	list, err := s.list()
	if _, isList := s.value.(*ast.SequenceNode); !isList {
		var text string
		text, err = s.text()
		list = strings.Split(text, ",")
	}
	if err != nil {
		return err
	}
	for _, dir := range list {
		dir = strings.TrimSpace(dir)
		if !filepath.IsAbs(dir) {
			return s.errorf("has the directory %.60q; write absolute paths with commas between them", dir)
		}
		f.to.Dirs = append(f.to.Dirs, filepath.Clean(dir))
	}
	return nil
}

// word returns an error unless the value is one of the words.
func (s setting) word(words ...string) error {
	text, err := s.text()
	if err == nil && !slices.Contains(words, text) {
		err = s.errorf("is %.40q; write %s%s", text, strings.Join(words, " or "), didYouMean(text, slices.Clone(words)))
	}
	return err
}
