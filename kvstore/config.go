package kvstore

import (
	"github.com/kv3fs/kv3fs/kvstore/keys"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Config is the configuration of a chain. Keys are those of UCM's
// ucm_connector_config where it has them, and so are defaults, unless said. The
// zero value of a field means its default; one that no store of the chain reads
// is an error.
type Config struct {
	// StorePipeline is the chain's name; ReadConfig's files have it, Open is told.
	StorePipeline string `yaml:"store_pipeline"`

	// Namespace is what decides the bytes of blocks, besides their tokens. Blocks of
	// another one are misses. Required.
	Namespace keys.Namespace `yaml:"namespace"`

	// BlockSize is the bytes of a block, ShardSize those of each of its parts, which
	// divide it; default one shard. Where TensorSize is given and ShardSize is not, it
	// is ShardSize.
	BlockSize  int64 `yaml:"block_size"`
	ShardSize  int64 `yaml:"shard_size"`
	TensorSize int64 `yaml:"tensor_size"`

	// StorageBackends is where blocks are: for Posix one directory or several with
	// colons between them, for Ds3fs the root of the mount (only the first counts),
	// for Segment a directory of its own. Required for those.
	StorageBackends string `yaml:"storage_backends"`

	// TimeoutMs bounds every wait. Default 30000.
	TimeoutMs int `yaml:"timeout_ms"`
	// IODirect bypasses the page cache. Default true for Ds3fs, else false.
	IODirect *bool `yaml:"io_direct"`
	// StreamNumber is how many requests Segment and Pages have in flight, and for
	// Ds3fs how many rings it has in each direction. Default 32; for Ds3fs 2, since
	// one ring has many requests in flight here.
	StreamNumber int `yaml:"stream_number"`
	// WaitingQueueDepth is how many requests may wait for their turn, in Cache how
	// many blocks may wait to be written to the next store. Default 1024; for Ds3fs
	// and Cache 8192.
	WaitingQueueDepth int `yaml:"waiting_queue_depth"`
	// RunningQueueDepth is how many shards may be under way. Default 32768.
	RunningQueueDepth int `yaml:"running_queue_depth"`
	// Checksums is auto (the default), require or off. Not UCM's.
	Checksums kv.Checksums `yaml:"checksums"`

	// Of Ds3fs:

	// IOREntries is how many requests a ring has in flight. Default 64, not UCM's 1.
	IOREntries int `yaml:"ior_entries"`
	// NUMAID is the node to take memory from. Default -1: any.
	NUMAID *int `yaml:"numa_id"`
	// BufferSize is the shared memory through which buffers pass that are not
	// registered. Default 64 MiB; UCM's documents say 64 GB, its code does not read it.
	BufferSize int64 `yaml:"buffer_size"`
	// OpenFiles is how many files stay open and registered. Default 1024. Not UCM's.
	OpenFiles int `yaml:"open_files"`

	// Of Cache:

	// CacheBufferCapacityGB is the cache's size in GiB. Default 256, or 32 if it is
	// not shared, but not more than half of the memory that is free.
	CacheBufferCapacityGB int `yaml:"cache_buffer_capacity_gb"`
	// CacheBufferBytes is the same in bytes, for small ones. Not UCM's.
	CacheBufferBytes int64 `yaml:"cache_buffer_bytes"`
	// ShareBufferEnable lets processes of the same UniqueID share one cache. Default
	// false; UCM's is true for MLA models.
	ShareBufferEnable bool `yaml:"share_buffer_enable"`
	// UniqueID names the shared cache. Default: the namespace's fingerprint.
	UniqueID string `yaml:"unique_id"`
	// CacheStreamNumber is how many threads copy. Default 4, but not more than there
	// are processors.
	CacheStreamNumber int `yaml:"cache_stream_number"`
	// CachePolicy is lru (the default) or aged. Not UCM's.
	CachePolicy string `yaml:"cache_policy"`

	// Of Posix:

	// PosixIOEngine is psync (the default) or aio, which means io_direct here.
	PosixIOEngine string `yaml:"posix_io_engine"`
	// PosixDataTransConcurrency is how many requests are in flight. Default 128 with
	// IODirect, else 8 for each processor and at most 128.
	PosixDataTransConcurrency int `yaml:"posix_data_trans_concurrency"`
	// DataDirShardBytes is how many hexadecimal digits of a key name its directory,
	// 0 to 5. Default 3.
	DataDirShardBytes *int `yaml:"data_dir_shard_bytes"`

	// Of Segment, none UCM's:

	// SegmentCapacityGB is the store's size in GiB; SegmentCapacityBytes the same in
	// bytes. One is required.
	SegmentCapacityGB    int   `yaml:"segment_capacity_gb"`
	SegmentCapacityBytes int64 `yaml:"segment_capacity_bytes"`
	// SegmentBytes is the size of each file. Default 1 GiB, less in a small store.
	SegmentBytes int64 `yaml:"segment_bytes"`
	// SegmentCarryFraction is how much of a file that is used again may be blocks
	// that were hit, and are kept. Default 0.25; at most 0.5, none where negative.
	SegmentCarryFraction float64 `yaml:"segment_carry_fraction"`

	// Of Pages, none UCM's:

	// PagesURL is the page service. Default http://127.0.0.1:18000.
	PagesURL string `yaml:"pages_url"`
	// PagesFile is the file whose pages it hands out. Required.
	PagesFile string `yaml:"pages_file"`
	// PagesCapacityGB is the size in GiB of a file that is made; PagesCapacityBytes
	// the same in bytes. Without either the file must be there.
	PagesCapacityGB    int   `yaml:"pages_capacity_gb"`
	PagesCapacityBytes int64 `yaml:"pages_capacity_bytes"`
	// PagesRank is the rank whose pages these are. Default 0.
	PagesRank int `yaml:"pages_rank"`
	// PagesLeaseMs, PagesReserveMs and PagesQuarantineMs are what the service has for
	// --pages-lease, --pages-reserve and --pages-quarantine. Defaults 30000, 60000 and
	// 10000, as there.
	PagesLeaseMs      int `yaml:"pages_lease_ms"`
	PagesReserveMs    int `yaml:"pages_reserve_ms"`
	PagesQuarantineMs int `yaml:"pages_quarantine_ms"`
}

// Layout is the size of the blocks.
func (c Config) Layout() (Layout, error) {
	l := Layout{BlockBytes: c.BlockSize, ShardBytes: c.ShardSize}
	if l.ShardBytes == 0 {
		l.ShardBytes = c.TensorSize
	}
	if l.ShardBytes == 0 {
		l.ShardBytes = l.BlockBytes
	}
	return l, l.Check()
}
