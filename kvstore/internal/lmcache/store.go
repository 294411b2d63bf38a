// Package lmcache keeps each block in a file that LMCache's connectors read and write: the
// remote 3FS connector, the FS connector, and the L2 adapters of the multi-process server.
// A block is a chunk of LMCache's, of one rank.
//
//	<base path>/<model>@<world size>@<worker>@<hash>@<type>.data   a header, and the block
//	<base path>/<2 digits of hash>/<2 more>/<name>.data            an object, with hash_subdir_levels 2
//	<base path>/.kv3fs-temp/                                       blocks that are being written
//	<base path>/.kv3fs-sums-<16 digits>/                           checksums, see package sums
//	<base path>/.kv3fs-quarantine/                                 the latest blocks that were found damaged
//	<base path>/.kv3fs-spare/                                      blocks whose own place the file system cannot read
//
// LMCache ignores the last four. It has no checksums: what it writes is loaded without, if
// its name, its length and its header are right, unless the store is to require them. A
// name says model, rank and type, so Keys yields LMCache's blocks and Delete removes them.
// The files of other models, ranks and types have other names, and logs of their own.
//
// A chunk that LMCache cut short at the end of a prompt has another length, and is no block
// of the store. Nothing is synced, as in LMCache.
package lmcache

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/zeebo/xxh3"

	layout "github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/internal/blockfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
)

// Options of Open. Fields that are zero have their defaults.
type Options struct {
	// BasePaths are the directories, in LMCache's order, which decides where a block is
	// written. Those that do not exist are made; below Mount their parents are, too.
	BasePaths []string
	// Mount is the 3FS that they are on, "" for other file systems.
	Mount string

	// Chunk or Object says how files are named; the Hash in it has no meaning. One of the
	// two is given. AlsoChunks are names that LMCaches of other releases give the same
	// chunks: these files are read as well.
	Chunk      *layout.Name
	AlsoChunks []layout.Name
	Object     *layout.ObjectName

	// SubdirLevels is in how many levels of directories objects are written, two digits of
	// the hash for each: fs_native's hash_subdir_levels. They are read with any number.
	SubdirLevels int

	// Header is what a file begins with; nil: with the block.
	Header *layout.Header

	// IDs knows the ids that are whole digests. Without it keys are numbers.
	IDs IDs

	// TempDir is where blocks are while they are being written, below a base path. Default
	// .kv3fs-temp.
	TempDir string

	Layout    kv.Layout
	Namespace kv.Fingerprint
	Checksums kv.Checksums

	// Engine moves the bytes. The store closes it. On an error of Open the caller does.
	Engine transfer.Engine

	OpenFiles         int           // how many files that no load is using stay open; 64
	RunningQueueDepth int           // how many shards are accepted before Load and Save wait; 32768
	Timeout           time.Duration // bounds every wait; 30 s
}

// Store is a kv.Store and a kv.Registrar.
type Store struct{ *blockfiles.Store }

const (
	name = "LMCache"

	defaultOpenFiles = 64
	defaultTimeout   = 30 * time.Second

	// mostNameBytes is how long the name of a file can be.
	mostNameBytes = 255
)

// Open opens the store.
func Open(o Options) (*Store, error) {
	f, err := o.format()
	if err != nil {
		return nil, err
	}
	if err := blockfiles.Bounded(cmp.Or(o.Timeout, defaultTimeout), o.BasePaths, o.claimDirs, func() {}); err != nil {
		return nil, err
	}
	if o.OpenFiles == 0 {
		o.OpenFiles = defaultOpenFiles
	}
	s, err := blockfiles.Open(blockfiles.Options{
		Name:              name,
		Layout:            o.Layout,
		Namespace:         o.Namespace,
		Checksums:         o.Checksums,
		Roots:             o.BasePaths,
		Format:            f,
		TempDir:           o.TempDir,
		SumsDir:           o.sumsDir(f),
		NamesTell:         true,
		Engine:            o.Engine,
		OpenFiles:         o.OpenFiles,
		RunningQueueDepth: o.RunningQueueDepth,
		Timeout:           o.Timeout,
	})
	if err != nil {
		return nil, err
	}
	return &Store{s}, nil
}

func (o *Options) format() (*format, error) {
	if err := o.Layout.Check(); err != nil {
		return nil, err
	}
	f := &format{header: o.Header, blockBytes: o.Layout.BlockBytes, ids: o.IDs, object: o.Object != nil}
	switch {
	case o.Object != nil:
		if err := o.Object.Check(); err != nil {
			return nil, fmt.Errorf("kvstore: %w", err)
		}
		if o.SubdirLevels < 0 || o.SubdirLevels > layout.MostSubdirs {
			return nil, fmt.Errorf("kvstore: hash_subdir_levels is %d; it must be from 0 to %d", o.SubdirLevels, layout.MostSubdirs)
		}
		f.addName(o.Object.Affixes())
		f.levels = []int{o.SubdirLevels}
		for n := range layout.MostSubdirs + 1 {
			if n != o.SubdirLevels {
				f.levels = append(f.levels, n)
			}
		}
		if o.Object.Group == layout.NoGroup { // LMCaches that have such names have no directories
			if o.SubdirLevels > 0 {
				return nil, errors.New("kvstore: hash_subdir_levels is for LMCaches whose objects have a group; set it to 0, or name the group")
			}
			f.levels = f.levels[:1]
		}
	case o.Chunk != nil:
		for _, n := range append([]layout.Name{*o.Chunk}, o.AlsoChunks...) {
			if err := n.Check(); err != nil {
				return nil, fmt.Errorf("kvstore: %w", err)
			}
			f.addName(n.Affixes())
		}
		if o.SubdirLevels != 0 {
			return nil, errors.New("kvstore: hash_subdir_levels is for the objects of fs_native; LMCache has no directories for chunks")
		}
		f.levels = []int{0}
	default:
		return nil, errors.New("kvstore: LMCache's files need the name of a model")
	}
	if h := o.Header; h != nil {
		if err := h.Check(); err != nil {
			return nil, fmt.Errorf("kvstore: the header of LMCache's files: %w", err)
		}
		if h.PayloadBytes != o.Layout.BlockBytes {
			return nil, fmt.Errorf("kvstore: the header of LMCache's files says that a chunk has %d bytes, and a block has %d; they must be the same", h.PayloadBytes, o.Layout.BlockBytes)
		}
	}
	digits := len("-8000000000000000")
	if o.IDs != nil {
		digits = layout.DigestDigits
	}
	for _, n := range f.names {
		if longest := len(n.prefix) + digits + len(n.suffix); longest > mostNameBytes {
			return nil, fmt.Errorf("kvstore: the names of LMCache's files, %s<hash>%s, have up to %d bytes, and file systems allow %d; use a shorter name of the model", n.prefix, n.suffix, longest, mostNameBytes)
		}
	}
	return f, nil
}

func (f *format) addName(prefix, suffix string) { f.names = append(f.names, affixes{prefix, suffix}) }

// sumsDir is where the checksum logs are: those of all stores of the same chunks are in one
// directory, whichever names they write.
func (o *Options) sumsDir(f *format) string {
	same := f.names[0]
	if o.Chunk != nil {
		for _, n := range append([]layout.Name{*o.Chunk}, o.AlsoChunks...) {
			if n.OldFormat == "" {
				same.prefix, same.suffix = n.Affixes()
			}
		}
	}
	return fmt.Sprintf(".kv3fs-sums-%016x", xxh3.HashString(same.prefix+"\x00"+same.suffix))
}

// claimDirs makes the base paths that do not exist.
func (o *Options) claimDirs() error {
	if len(o.BasePaths) == 0 {
		return errors.New("kvstore: LMCache has no base path; name the directories that hold the chunks")
	}
	if filepath.IsAbs(o.TempDir) || o.TempDir != "" && !filepath.IsLocal(o.TempDir) {
		return fmt.Errorf("kvstore: the directory of temporary files is %s; name one below the base paths, such as tmp", o.TempDir)
	}
	for i, dir := range o.BasePaths {
		for _, other := range o.BasePaths[:i] {
			if filepath.Clean(dir) == filepath.Clean(other) {
				return fmt.Errorf("kvstore: base path %s is given twice", dir)
			}
		}
		mkdir := os.Mkdir
		if o.Mount != "" { // it is mounted, so nothing lands on the disk below
			mkdir = os.MkdirAll
		}
		err := mkdir(dir, 0o777)
		switch {
		case err == nil, errors.Is(err, fs.ErrExist):
		case errors.Is(err, fs.ErrNotExist):
			return fmt.Errorf("kvstore: make base path %s: there is no %s; make it, or mount what belongs there", dir, filepath.Dir(filepath.Clean(dir)))
		default:
			return fmt.Errorf("kvstore: make base path: %w", err)
		}
	}
	return nil
}
