package kvstore

import (
	"errors"
	"fmt"
	"strings"

	"github.com/kv3fs/kv3fs/internal/layout/gds"
	"github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/gdsfiles"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// GdsOptions configure Gds, which keeps blocks in the files of LMCache's GDS backend: LMCache
// reads what it writes, and the other way round. Keys of a chain with
// [keys.LMCache].NumberKeys are LMCache's chunks; blocks under other keys are kept, too, and no
// LMCache asks for them.
type GdsOptions struct {
	// Dirs are LMCache's gds_path. Required. GPU is the number of the GPU: blocks are
	// written to the directory with that number modulo how many there are, and found in
	// all.
	Dirs []string
	GPU  int

	// WorldSize and WorkerID are those in LMCache's file names. Default: all ranks of the
	// namespace, and the rank among them, tensor-parallel ranks of a pipeline stage side by
	// side. With MLA, where ranks share, LMCache has 1 and 0.
	WorldSize, WorkerID int

	// Layer is the layer that the blocks have, in layerwise mode. Default: all. Tags are the
	// request's lmcache.tag settings, in order.
	Layer *int
	Tags  []LMCacheTag

	// Shape and MemoryFormat are those in the files' headers. Default: [2, Layers,
	// BlockTokens, elements] and 1, as LMCache has chunks of keys and values; with Layer
	// [BlockTokens, 2, elements] and 2. For MLA the format is 6. A chunk of several tensors
	// has Tensors instead of Shape, such as the groups of layers of a hybrid model.
	Shape        []int64
	MemoryFormat int
	Tensors      []LMCacheTensor

	// IDs knows LMCache's ids where these are whole digests. A [keys.IDs] does, once the
	// blocks are added. Keys are then those of digests, or numbers. DigestNumbers means that
	// they are written as numbers, as by LMCaches with a vLLM whose hash functions return
	// numbers, and not bytes; both are read.
	IDs           LMCacheIDs
	DigestNumbers bool

	// Device is the device whose memory shards may name, nil for none. If it is a
	// [device.Direct], as that of module github.com/kv3fs/kv3fs/cuda is, its memory is moved
	// without a copy through the host's, unless NoDirect is set (LMCache's use_gds: false),
	// the file system has no way to do that, or cuFile refuses: then it is copied. With
	// checksums, which are computed on the host, bytes are copied there as well.
	Device   device.Device
	NoDirect bool
	// BufferBytes is how much of the device's memory is registered for direct transfers, of
	// the buffers that shards name: LMCache's gds_buffer_size. Default 1 GiB.
	BufferBytes int64

	// DirectIO bypasses the page cache. Default false.
	DirectIO bool

	// Transfers is how many reads and writes run at once. Default 4.
	Transfers int
	// WaitingTransfers is how many more may wait. Default 1024.
	WaitingTransfers int
	// AcceptedShards is how many shards may be under way before Load and Save wait.
	// Default 32768.
	AcceptedShards int
}

func (b *builder) gds() (kv.Store, error) {
	given := b.Gds
	if given == nil || len(given.Dirs) == 0 {
		return nil, errors.New("kvstore: Config.Gds.Dirs is empty; name the directories that hold the blocks (LMCache's gds_path)")
	}
	b.device = given.Device
	ns := b.Namespace
	if given.WorldSize == 0 && given.WorkerID != 0 {
		return nil, errors.New("kvstore: Config.Gds.WorkerID is set without WorldSize; set both or neither")
	}
	tp := max(ns.TPSize, 1)
	o := gdsfiles.Options{
		Dirs: given.Dirs, GPU: given.GPU, Layout: b.layout(), Namespace: b.namespace,
		Model: ns.Model, WorldSize: tp * max(ns.PPSize, 1), WorkerID: ns.PPRank*tp + ns.TPRank,
		Shape: given.Shape, MemoryFormat: given.MemoryFormat, Layers: ns.Layers, Tokens: ns.BlockTokens,
		Layer: given.Layer, DigestNumbers: given.DigestNumbers,
		Device: given.Device, NoDirect: given.NoDirect, BufferBytes: given.BufferBytes,
		DirectIO: given.DirectIO, Streams: given.Transfers, WaitingQueueDepth: given.WaitingTransfers,
		RunningQueueDepth: given.AcceptedShards, Timeout: b.Timeout, Checksums: b.checksums(), Logger: b.Logger,
	}
	if given.WorldSize > 0 {
		o.WorldSize, o.WorkerID = given.WorldSize, given.WorkerID
	}
	if given.IDs != nil {
		o.IDs = given.IDs
	}
	for _, tag := range given.Tags {
		o.Tags = append(o.Tags, lmcache.Tag(tag))
	}
	for _, tensor := range given.Tensors {
		word, ok := gds.DTypeOf(tensor.DType)
		if !ok {
			return nil, fmt.Errorf("kvstore: Config.Gds.Tensors has the type %.40q; use half, bfloat16, float, double, uint8, int8, fp8_e4m3fn or fp8_e5m2", tensor.DType)
		}
		group := gds.Group{DType: word}
		for _, n := range tensor.Shape {
			group.Shape = append(group.Shape, int64(n))
		}
		o.Groups = append(o.Groups, group)
	}
	dtype := ns.KVDType
	if dtype == "" || dtype == "auto" {
		dtype = ns.DType
	}
	if dtype == "" {
		return nil, errors.New("kvstore: the namespace has no dtype, which is in the names of LMCache's files; set it, bfloat16 for example")
	}
	var ok bool
	if o.DType, ok = lmcache.WordOf(strings.TrimPrefix(dtype, "torch.")); !ok {
		return nil, fmt.Errorf("kvstore: LMCache has no word for the namespace's kv_dtype %.40q; use bfloat16, float16, float32, fp8_e4m3 or uint8", dtype)
	}
	return plain(gdsfiles.Open(o))
}
