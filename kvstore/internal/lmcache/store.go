// Package lmcache keeps each block in a file that LMCache's connectors read and write: the
// remote 3FS connector, the FS connector, and the L2 adapters of the multi-process server.
// A block is a chunk of LMCache's, of one rank.
//
//	<base path>/<model>@<world size>@<worker>@<hash>@<type>.data   a header, and the block
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
	// two is given.
	Chunk  *layout.Name
	Object *layout.ObjectName

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

	// mostNameBytes is how long the name of a file can be.
	mostNameBytes = 255
)

// Open opens the store.
func Open(o Options) (*Store, error) {
	f, err := o.format()
	if err != nil {
		return nil, err
	}
	if err := o.claimDirs(); err != nil {
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
		SumsDir:           fmt.Sprintf(".kv3fs-sums-%016x", xxh3.HashString(f.prefix+"\x00"+f.suffix)),
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
		f.prefix, f.suffix = o.Object.Affixes()
	case o.Chunk != nil:
		if err := o.Chunk.Check(); err != nil {
			return nil, fmt.Errorf("kvstore: %w", err)
		}
		f.prefix, f.suffix = o.Chunk.Affixes()
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
	if longest := len(f.prefix) + digits + len(f.suffix); longest > mostNameBytes {
		return nil, fmt.Errorf("kvstore: the names of LMCache's files, %s<hash>%s, have up to %d bytes, and file systems allow %d; use a shorter name of the model", f.prefix, f.suffix, longest, mostNameBytes)
	}
	return f, nil
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
