package kvstore

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	layout "github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/posix"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// LMCacheOptions configure LMCache, which keeps each block in a file that LMCache's remote
// 3FS connector and its FS connector can read, and reads theirs. A block is a chunk of one
// rank: Namespace.BlockTokens is LMCache's chunk_size, Layout.BlockBytes the size of a
// whole chunk. A shorter chunk, as LMCache makes of the end of a prompt, is a miss.
//
// Keys must stand for LMCache's hashes: see [keys.LMCache.NumberKeys], and IDs. The
// namespace's fields other than these do not reach the names of files; what has another
// revision or layout needs base paths of its own.
type LMCacheOptions struct {
	// BasePaths are LMCache's base paths, in its order. Required. On a 3FS or kv3fs mount
	// the data moves through rings; all of them are then on the same mount.
	BasePaths []string

	// Model, WorldSize and WorkerID are LMCache's. Defaults: Namespace.Model, TPSize times
	// PPSize, and the rank among these, TPRank counting first. Where ranks share an MLA
	// model's blocks they are 1 and 0.
	Model     string
	WorldSize int
	WorkerID  *int
	// DType is the type of keys and values: half, bfloat16, fp8_e4m3fn and so on. Default
	// Namespace.KVDType, or DType, in LMCache's words.
	DType string
	// Layer is the layer that the blocks have, in layerwise mode. Default: all.
	Layer *int
	// Tags are the request's lmcache.tag settings, in order.
	Tags []LMCacheTag
	// HyphenForSlash means files of older LMCaches, which write a hyphen for each slash in
	// the model's name, not -SEP-.
	HyphenForSlash bool
	// Names is how files are named that the store writes. Default: as LMCache names them
	// now. Files with those names are read in any case, and those of AlsoNames, too.
	Names     LMCacheNames
	AlsoNames []LMCacheNames
	// NamesFormat is the first field of older names. Default vllm.
	NamesFormat string

	// Objects means files of LMCache's multi-process server: those of its L2 adapters
	// hf3fs, fs and fs_native, without a header. WorldSize, WorkerID, DType, Layer, Tags,
	// Names and HyphenForSlash are then not used. It needs IDs.
	Objects *LMCacheObjects
	// HashSubdirLevels is in how many levels of directories objects are written, each named
	// by two digits of the hash: fs_native's hash_subdir_levels. They are read with any.
	HashSubdirLevels int

	// NoChunkMeta is LMCache's save_chunk_meta: false. Files then have no header.
	NoChunkMeta bool
	// Header is what LMCache's header says of a chunk. Default: one tensor [2, layers,
	// tokens, hidden] of DType, which fills the block.
	Header *LMCacheHeader

	// IDs knows LMCache's ids where these are whole digests. A [keys.IDs] does, once the
	// blocks are added. Default: keys stand for numbers.
	IDs LMCacheIDs

	// RelativeTmpDir is LMCache's fs_connector_relative_tmp_dir: where files are while they
	// are being written, below the base path. Default .kv3fs-temp. Names in it are those of
	// one writer each, not LMCache's.
	RelativeTmpDir string

	// DirectIO bypasses the page cache where there are no rings, for files without a
	// header.
	DirectIO bool
	// Transfers is how many reads and writes run at once without rings. Default 32.
	Transfers int
	// Rings is how many rings there are in each direction. Default 2.
	Rings int
	// WaitingTransfers is how many more may wait. Default 1024, with rings 8192.
	WaitingTransfers int
	// AcceptedShards is how many shards may be under way before Load and Save wait.
	// Default 32768.
	AcceptedShards int
	// OpenFiles is how many files that no load is using stay open. Default 64, with rings
	// 1024.
	OpenFiles int

	RingOptions
}

// LMCacheNames is a generation of the names of LMCache's files.
type LMCacheNames string

// Generations of names. The type of keys and values is not in the oldest, so that files of two
// types in one directory are told apart by their header alone.
const (
	LMCacheNamesNow     LMCacheNames = ""        // model@world_size@worker_id@hash@type
	LMCacheNamesFormat  LMCacheNames = "format"  // vllm@model@world_size@worker_id@hash@type
	LMCacheNamesUntyped LMCacheNames = "untyped" // vllm@model@world_size@worker_id@hash
)

// LMCacheTag is one of a request's tags.
type LMCacheTag struct{ Key, Value string }

// LMCacheObjects says which objects of LMCache's multi-process server a store has.
type LMCacheObjects struct {
	// KVRank packs, from the top, world size, rank, local world size and local rank, a byte
	// each.
	KVRank uint32
	// Group is the object group. NoGroup means an older LMCache, whose names have none.
	Group   int
	NoGroup bool
	// Salt is LMCache's cache_salt.
	Salt string
}

// LMCacheHeader is what the header of LMCache's files says of a chunk.
type LMCacheHeader struct {
	// MemoryFormat is LMCache's number: 1 [2, layers, tokens, hidden], 2 [tokens, 2,
	// hidden], 3 [2, tokens, hidden], 6 MLA.
	MemoryFormat int
	// Tensors are those of the chunk, in order.
	Tensors []LMCacheTensor
	// PadOnes means that a shape of fewer than four numbers has ones before it, as some
	// older LMCaches write it, not zeros behind it. Both are read.
	PadOnes bool
}

// LMCacheTensor is a tensor of a chunk.
type LMCacheTensor struct {
	DType string // half, bfloat16, float, double, uint8, fp8_e4m3fn or fp8_e5m2
	Shape []int  // at most four numbers
}

// LMCacheIDs translates between keys and LMCache's ids. [keys.IDs] is one.
type LMCacheIDs interface {
	// ID returns the id of a key, and whether it is known.
	ID(Key) (keys.ID, bool)
	// Key returns the key of an id that was found in a directory.
	Key(keys.ID) Key
}

var _ LMCacheIDs = (*keys.IDs)(nil)

func (b *builder) lmcache() (kv.Store, error) {
	if b.LMCache == nil || len(b.LMCache.BasePaths) == 0 {
		return nil, errors.New("kvstore: Config.LMCache.BasePaths is empty; name the directories that hold LMCache's chunks")
	}
	given := b.LMCache
	o := lmcache.Options{
		BasePaths: given.BasePaths, TempDir: given.RelativeTmpDir,
		Layout: b.layout(), Namespace: b.namespace, Checksums: b.checksums(),
		RunningQueueDepth: given.AcceptedShards, Timeout: b.Timeout, OpenFiles: given.OpenFiles,
	}
	if given.IDs != nil {
		o.IDs = given.IDs
	}
	var err error
	if o.Chunk, o.Object, err = given.names(b.Namespace); err != nil {
		return nil, err
	}
	dtype := ""
	if o.Chunk != nil {
		dtype = o.Chunk.DType
		if *o.Chunk, o.AlsoChunks, err = given.generations(*o.Chunk); err != nil {
			return nil, err
		}
	}
	o.SubdirLevels = given.HashSubdirLevels
	if !given.NoChunkMeta && o.Object == nil {
		if o.Header, err = given.header(b.Config, dtype); err != nil {
			return nil, err
		}
	}
	if given.DirectIO && o.Header != nil {
		return nil, errors.New("kvstore: Config.LMCache.DirectIO is for files without a header, as in LMCache; set NoChunkMeta or leave it out")
	}
	if o.Mount, err = lmcache.FindMount(given.BasePaths, b.Timeout); err != nil {
		return nil, err
	}
	if o.Engine, err = b.lmcacheEngine(o.Mount); err != nil {
		return nil, err
	}
	if o.Mount != "" {
		b.rings = true
		o.OpenFiles = cmp.Or(o.OpenFiles, 1024)
	}
	store, err := lmcache.Open(o)
	if err != nil {
		return nil, errors.Join(err, o.Engine.Close())
	}
	return store, nil
}

func (b *builder) lmcacheEngine(mount string) (transfer.Engine, error) {
	o := b.LMCache
	if mount == "" {
		return posix.New(posix.Options{
			Streams: o.Transfers, WaitingQueueDepth: o.WaitingTransfers,
			Timeout: b.Timeout, DirectIO: o.DirectIO,
		}), nil
	}
	return ringio.New(ringio.Options{
		Mount: mount, Streams: o.Rings, Entries: o.RingEntries, BufferBytes: b.bufferBytes(lmcacheName, o.BufferBytes),
		WaitingQueueDepth: o.WaitingTransfers, Timeout: b.Timeout, NUMANode: o.NUMANode,
	})
}

// names returns how files are named.
func (o *LMCacheOptions) names(ns keys.Namespace) (*layout.Name, *layout.ObjectName, error) {
	model := cmp.Or(o.Model, ns.Model)
	if objects := o.Objects; objects != nil {
		if o.IDs == nil {
			return nil, nil, errors.New("kvstore: Config.LMCache.Objects has files named by whole digests; set IDs, such as keys.NewIDs, and add the blocks to it")
		}
		group := objects.Group
		if objects.NoGroup {
			group = layout.NoGroup
		}
		return nil, &layout.ObjectName{Model: model, Rank: layout.KVRank(objects.KVRank), Group: group, Salt: objects.Salt}, nil
	}
	tp, pp := max(ns.TPSize, 1), max(ns.PPSize, 1)
	n := &layout.Name{
		Model: model, WorldSize: cmp.Or(o.WorldSize, tp*pp), WorkerID: ns.PPRank*tp + ns.TPRank,
		Layer: layout.NoLayer, OldSlashes: o.HyphenForSlash,
	}
	if o.WorkerID != nil {
		n.WorkerID = *o.WorkerID
	}
	if o.Layer != nil {
		n.Layer = *o.Layer
	}
	for _, tag := range o.Tags {
		n.Tags = append(n.Tags, layout.Tag(tag))
	}
	n.DType = o.DType
	if n.DType == "" {
		dtype := ns.KVDType
		if dtype == "" || dtype == "auto" {
			dtype = ns.DType
		}
		word, ok := layout.WordOf(strings.TrimPrefix(dtype, "torch."))
		if !ok {
			return nil, nil, fmt.Errorf("kvstore: LMCache's files have the type of keys and values in their names, and the namespace's is %.40q; set Config.LMCache.DType to %s", dtype, strings.Join(layout.DTypes(), ", "))
		}
		n.DType = word
	}
	return n, nil, nil
}

// generations returns the name of the files that are written, and those that are only read.
func (o *LMCacheOptions) generations(now layout.Name) (written layout.Name, also []layout.Name, err error) {
	for i, names := range append([]LMCacheNames{o.Names, LMCacheNamesNow}, o.AlsoNames...) {
		n := now
		switch names {
		case LMCacheNamesNow:
		case LMCacheNamesFormat:
			n.OldFormat = cmp.Or(o.NamesFormat, "vllm")
		case LMCacheNamesUntyped:
			n.OldFormat, n.DType = cmp.Or(o.NamesFormat, "vllm"), ""
		default:
			return now, nil, fmt.Errorf("kvstore: Config.LMCache.Names or AlsoNames is %.40q; use %q, %q, or leave it out", names, LMCacheNamesFormat, LMCacheNamesUntyped)
		}
		if i == 0 {
			written = n
		} else if n.String() != written.String() {
			also = append(also, n)
		}
	}
	return written, also, nil
}

// header returns what a file begins with.
func (o *LMCacheOptions) header(c Config, dtype string) (*layout.Header, error) {
	h := &layout.Header{PayloadBytes: c.Layout.BlockBytes}
	given := o.Header
	if given == nil {
		shape, err := defaultShape(c, dtype, o.Layer != nil)
		if err != nil {
			return nil, err
		}
		given = &LMCacheHeader{MemoryFormat: int(layout.Format2LTD), Tensors: []LMCacheTensor{{dtype, shape}}}
		if o.Layer != nil {
			given.MemoryFormat = int(layout.FormatT2D)
		}
	}
	h.Format = layout.MemoryFormat(given.MemoryFormat)
	padding := layout.PadZeros
	if given.PadOnes {
		padding = layout.PadOnes
	}
	for _, tensor := range given.Tensors {
		code, ok := layout.CodeOf(tensor.DType)
		if !ok {
			return nil, fmt.Errorf("kvstore: LMCache's header has no code for the type %.40q; set NoChunkMeta (save_chunk_meta: false), or name one of half, bfloat16, float, double, uint8, fp8_e4m3fn, fp8_e5m2", tensor.DType)
		}
		shape, err := layout.Pad(tensor.Shape, padding)
		if err != nil {
			return nil, fmt.Errorf("kvstore: Config.LMCache.Header: %w", err)
		}
		h.Groups = append(h.Groups, layout.Group{DType: code, Shape: shape})
	}
	return h, nil
}

// defaultShape returns the shape of a chunk that is one tensor: [2, layers, tokens, hidden],
// or [tokens, 2, hidden] of one layer.
func defaultShape(c Config, dtype string, oneLayer bool) ([]int, error) {
	code, _ := layout.CodeOf(dtype)
	layers := c.Namespace.Layers
	if oneLayer {
		layers = 1
	}
	row := 2 * int64(layers) * int64(c.Namespace.BlockTokens) * int64(code.Bytes())
	if row == 0 || c.Layout.BlockBytes%row != 0 {
		return nil, fmt.Errorf("kvstore: a block of %d bytes is no tensor [2, %d layers, %d tokens, hidden] of %s; set the namespace's Layers and BlockTokens, or Config.LMCache.Header, or NoChunkMeta", c.Layout.BlockBytes, layers, c.Namespace.BlockTokens, dtype)
	}
	hidden := int(c.Layout.BlockBytes / row)
	if oneLayer {
		return []int{c.Namespace.BlockTokens, 2, hidden}, nil
	}
	return []int{2, layers, c.Namespace.BlockTokens, hidden}, nil
}

// lmcache returns what a file of LMCache's has set, or what the keys set that other stores
// have as well.
func (c *UCMConfig) lmcache() (*LMCacheOptions, error) {
	if c.LMCache != nil {
		o := *c.LMCache
		return &o, nil
	}
	dirs, err := c.backends()
	return &LMCacheOptions{
		BasePaths: dirs, Transfers: c.StreamNumber, Rings: c.StreamNumber,
		WaitingTransfers: c.WaitingQueueDepth, AcceptedShards: c.RunningQueueDepth, OpenFiles: c.OpenFiles, RingOptions: c.rings(),
	}, err
}
