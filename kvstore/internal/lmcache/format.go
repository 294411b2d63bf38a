package lmcache

import (
	"encoding/hex"
	"errors"
	"fmt"
	"strings"

	layout "github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// IDs translates between keys and LMCache's ids of chunks, where these do not fit into
// keys.
type IDs interface {
	// ID returns the id of a key, and whether it is known.
	ID(kv.Key) (keys.ID, bool)
	// Key returns the key of an id.
	Key(keys.ID) kv.Key
}

// format is the Format of LMCache's files. Only the hash in their names differs between
// the blocks of a store.
type format struct {
	names      []affixes // by generation; the first is written
	levels     []int     // of directories below the base path; the first is written
	object     bool      // see layout.ObjectName
	header     *layout.Header
	blockBytes int64
	ids        IDs // nil: keys are numbers
}

// affixes are what comes before and after the hash in the name of a file.
type affixes struct{ prefix, suffix string }

var _ blockfiles.Generations = (*format)(nil)

func (f *format) headBytes() int64 {
	if f.header == nil {
		return 0
	}
	return int64(layout.HeaderBytes(len(f.header.Groups)))
}

var (
	errNoNumber = errors.New("LMCache's files have its 64-bit hash in their names, and this key does not stand for one: make keys with NumberKeys in keys.LMCache, or keys.Uint64Key, or set IDs")
	errNoID     = errors.New("the id that LMCache gives it is not known: add the block to IDs first, and let that remember more blocks if it was added")
)

// hash returns the hash in the name of a block's file.
func (f *format) hash(key kv.Key) (string, error) {
	if f.ids != nil {
		id, ok := f.ids.ID(key)
		if !ok {
			return "", errNoID
		}
		return hex.EncodeToString(id.Bytes()), nil
	}
	if n, ok := key.Uint64(); ok {
		return layout.HashOfUnsigned(n), nil
	}
	if n, ok := key.Int64(); ok {
		return layout.HashOf(n), nil
	}
	return "", errNoNumber
}

// Place returns where LMCache has a block.
func (f *format) Place(key kv.Key) (blockfiles.Place, error) {
	hash, err := f.hash(key)
	if err != nil {
		return blockfiles.Place{}, err
	}
	return f.place(f.names[0], f.levels[0], hash), nil
}

func (f *format) place(name affixes, levels int, hash string) blockfiles.Place {
	head := f.headBytes()
	return blockfiles.Place{Dir: layout.Subdirs(hash, levels), Name: name.prefix + hash + name.suffix, Offset: head, Bytes: head + f.blockBytes}
}

// Places returns where LMCaches with other settings and older ones have a block.
func (f *format) Places(key kv.Key) ([]blockfiles.Place, error) {
	hash, err := f.hash(key)
	if err != nil {
		return nil, err
	}
	var all []blockfiles.Place
	for _, name := range f.names {
		for _, levels := range f.levels {
			all = append(all, f.place(name, levels, hash))
		}
	}
	return all, nil
}

// Key reads the name of a file.
func (f *format) Key(name string) (kv.Key, bool) {
	for _, a := range f.names {
		if len(name) < len(a.prefix)+len(a.suffix) || !strings.HasPrefix(name, a.prefix) || !strings.HasSuffix(name, a.suffix) {
			continue
		}
		if key, ok := f.keyOf(name[len(a.prefix) : len(name)-len(a.suffix)]); ok {
			return key, true
		}
	}
	return kv.Key{}, false
}

// keyOf returns the key of a hash.
func (f *format) keyOf(hash string) (kv.Key, bool) {
	if f.ids != nil {
		raw, ok := layout.HashDigest(hash)
		if !ok {
			return kv.Key{}, false
		}
		id, ok := keys.DigestID(raw)
		if !ok {
			return kv.Key{}, false
		}
		return f.ids.Key(id), true
	}
	size, negative, ok := layout.HashNumber(hash)
	if negative {
		return keys.Int64Key(-int64(size)), ok
	}
	return keys.Uint64Key(size), ok
}

// HasBlocks reports whether a directory is one of those that fs_native has with its
// hash_subdir_levels.
func (f *format) HasBlocks(dir string) bool { return len(f.levels) > 1 && layout.IsSubdir(dir) }

// Root returns the number of the base path.
func (f *format) Root(key kv.Key, roots int) int {
	hash, err := f.hash(key)
	switch {
	case err != nil || roots == 1:
		return 0
	case f.object || f.ids != nil:
		return layout.ObjectBasePath(hash, roots)
	}
	return layout.BasePath(hash, roots)
}

// Head returns the header.
func (f *format) Head(kv.Key) []byte { return f.header.Append(nil) }

// CheckHead compares a header with that of the store's chunks.
func (f *format) CheckHead(_ kv.Key, head []byte) error {
	has, err := layout.ParseHeader(head, len(f.header.Groups))
	if err != nil {
		return fmt.Errorf("its header is none: %w", err)
	}
	if err := f.header.Same(has); err != nil {
		return fmt.Errorf("its header is of other chunks: %w", err)
	}
	return nil
}

// Unfinished returns nothing: the connectors name a file when it is whole. A temporary file
// beside it is of a writer that replaces it.
func (f *format) Unfinished(kv.Key) string { return "" }
