package kvstore

import (
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/ucmkeys"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// UCMConfig is a chain's configuration in the terms of UCM: its fields are the keys of
// UCM's ucm_connector_config, and keys of our own for what UCM does not have. Defaults
// are UCM's, too, unless a comment says otherwise. The zero value of a field means its
// default. [ReadConfig] reads a UCMConfig, and [UCMConfig.Config] makes a Config of it.
type UCMConfig struct {
	// StorePipeline is the name of the chain, for files.
	StorePipeline string `yaml:"store_pipeline"`

	// Namespace is what decides the bytes of blocks besides their tokens. Blocks of
	// another namespace are misses. Required.
	Namespace keys.Namespace `yaml:"namespace"`

	// BlockSize is the size of a block. ShardSize, which divides it, is that of each of
	// its parts; default BlockSize. TensorSize is used where ShardSize is missing.
	BlockSize  int64 `yaml:"block_size"`
	ShardSize  int64 `yaml:"shard_size"`
	TensorSize int64 `yaml:"tensor_size"`

	// StorageBackends is where the blocks are: for Posix one directory or several
	// separated by colons, for Ds3fs the root of the mount (only the first counts), for
	// Segment a directory that holds nothing else. Required for those.
	StorageBackends string `yaml:"storage_backends"`

	// TimeoutMs bounds every wait. Default 30000.
	TimeoutMs int `yaml:"timeout_ms"`
	// IODirect bypasses the page cache. Default true for Ds3fs, whose rings always do, and
	// false for the others, as in UCM.
	IODirect *bool `yaml:"io_direct"`
	// StreamNumber is how many requests Segment and Pages have in flight, and how many
	// rings Ds3fs has in each direction. Default 32; for Ds3fs 2, since one ring has many
	// requests in flight here.
	StreamNumber int `yaml:"stream_number"`
	// WaitingQueueDepth is how many requests may wait for their turn, and in Cache how
	// many blocks may wait to be written to the next store. Default 1024; for Cache 8192.
	WaitingQueueDepth int `yaml:"waiting_queue_depth"`
	// RunningQueueDepth is how many shards may be under way. Default 32768.
	RunningQueueDepth int `yaml:"running_queue_depth"`
	// Checksums is auto (the default), require or off. Not UCM's.
	Checksums Checksums `yaml:"checksums"`
	// WritePolicy is back (the default) or through: see [WritePolicy]. Not UCM's.
	WritePolicy WritePolicy `yaml:"write_policy"`

	// Of Ds3fs:

	// IOREntries is how many requests a ring has in flight. Default 64, not UCM's 1.
	IOREntries int `yaml:"ior_entries"`
	// NUMAID is the node to take memory from. Default -1: any.
	NUMAID *int `yaml:"numa_id"`
	// OpenFiles is how many files stay open and registered. Default 1024. Not UCM's.
	OpenFiles int `yaml:"open_files"`

	// BufferSize is how many bytes of host memory this process uses: in a chain with Cache
	// the size of the cache, unless one of the next two keys says it. In Ds3fs or Pages
	// alone it is the shared memory for data whose buffers are not registered; its default
	// is then 64 MiB. More than is free is reduced. Files may write a unit: 64GB.
	BufferSize int64 `yaml:"buffer_size"`

	// Of Cache:

	// CacheBufferCapacityGB is the size of the cache in GiB. Default 256 where it is
	// shared, else 64, but at most half of the memory that is free.
	CacheBufferCapacityGB int `yaml:"cache_buffer_capacity_gb"`
	// CacheBufferBytes is the same in bytes, for small caches. Not UCM's.
	CacheBufferBytes int64 `yaml:"cache_buffer_bytes"`
	// ShareBufferEnable lets processes with the same UniqueID share one cache. Default
	// false; UCM's is true for MLA models.
	ShareBufferEnable bool `yaml:"share_buffer_enable"`
	// UniqueID names the shared cache. Default: the namespace's fingerprint.
	UniqueID string `yaml:"unique_id"`
	// CacheStreamNumber is how many copies to and from the device run at once, and how many
	// threads copy. Default 4, but at most one thread for each processor.
	CacheStreamNumber int `yaml:"cache_stream_number"`
	// CachePolicy is lru (the default) or aged. Not UCM's.
	CachePolicy string `yaml:"cache_policy"`

	// Of Posix:

	// PosixIOEngine is psync (the default) or aio, which means IODirect here.
	PosixIOEngine string `yaml:"posix_io_engine"`
	// PosixDataTransConcurrency is how many requests are in flight. Default 128.
	PosixDataTransConcurrency int `yaml:"posix_data_trans_concurrency"`
	// DataDirShardBytes is how many hexadecimal digits of a key name its directory, 0 to
	// 5. Default 3.
	DataDirShardBytes *int `yaml:"data_dir_shard_bytes"`

	// Of Segment, none of them UCM's:

	// SegmentCapacityGB is the size of the store in GiB, SegmentCapacityBytes the same in
	// bytes. One of the two is required.
	SegmentCapacityGB    int   `yaml:"segment_capacity_gb"`
	SegmentCapacityBytes int64 `yaml:"segment_capacity_bytes"`
	// SegmentBytes is the size of each file. Default 1 GiB, less in a small store.
	SegmentBytes int64 `yaml:"segment_bytes"`
	// SegmentCarryFraction is how much of a reused file may be blocks that were hit, and
	// are kept. Default 0.25; at most 0.5, none where negative.
	SegmentCarryFraction float64 `yaml:"segment_carry_fraction"`
	// SegmentDir is the directory, which holds nothing else. Default StorageBackends; required
	// where Segment is in front of another store.
	SegmentDir string `yaml:"segment_dir"`
	// SegmentWaitingBlocks and SegmentFillBytes are WaitingBlocks and FillBytes of
	// [SegmentOptions].
	SegmentWaitingBlocks int   `yaml:"segment_waiting_blocks"`
	SegmentFillBytes     int64 `yaml:"segment_fill_bytes"`

	// Of Pages, none of them UCM's:

	// PagesURL is the page service. Default http://127.0.0.1:18000.
	PagesURL string `yaml:"pages_url"`
	// PagesFile is the file whose pages the service hands out. Required.
	PagesFile string `yaml:"pages_file"`
	// PagesCapacityGB is the size in GiB of a file that is made, PagesCapacityBytes the
	// same in bytes. Without either the file must exist.
	PagesCapacityGB    int   `yaml:"pages_capacity_gb"`
	PagesCapacityBytes int64 `yaml:"pages_capacity_bytes"`
	// PagesRank is the rank whose pages these are. Default 0.
	PagesRank int `yaml:"pages_rank"`
	// PagesLeaseMs, PagesReserveMs and PagesQuarantineMs are the service's
	// --pages-lease, --pages-reserve and --pages-quarantine. Defaults 30000, 60000 and
	// 10000, as there.
	PagesLeaseMs      int `yaml:"pages_lease_ms"`
	PagesReserveMs    int `yaml:"pages_reserve_ms"`
	PagesQuarantineMs int `yaml:"pages_quarantine_ms"`

	// LMCache has what a file of LMCache's sets. Not a key.
	LMCache *LMCacheOptions `yaml:"-"`
	// Gds has what a file of LMCache's with its GDS backend sets. Not a key.
	Gds *GdsOptions `yaml:"-"`
	// RtpLlm has what RTP-LLM's environment sets, Kvcm what KVCM's file does. Not keys.
	RtpLlm *RtpLlmOptions `yaml:"-"`
	Kvcm   *KvcmOptions   `yaml:"-"`
}

// Layout returns the size of the blocks and of their shards.
func (c UCMConfig) Layout() (Layout, error) {
	l := Layout{BlockBytes: c.BlockSize, ShardBytes: c.ShardSize}
	if l.ShardBytes == 0 {
		l.ShardBytes = c.TensorSize
	}
	if l.ShardBytes == 0 {
		l.ShardBytes = l.BlockBytes
	}
	return l, l.Check()
}

// Config returns the same configuration for Open of that chain. Fields that no store of
// the chain reads are left out. Errors name the keys. A name that is no chain is for Open,
// or for that of a [Registry], to refuse.
func (c UCMConfig) Config(chain string) (Config, error) {
	names := splitChain(chain)
	layout, err := c.Layout()
	if err != nil {
		return Config{}, err
	}
	if err := c.check(); err != nil {
		return Config{}, err
	}
	if slices.Contains(names, cacheName) { // it is all the host memory that UCM has a key for
		if c.CacheBufferCapacityGB == 0 && c.CacheBufferBytes == 0 {
			c.CacheBufferBytes = c.BufferSize
		}
		c.BufferSize = 0
	}
	to := Config{
		Namespace: c.Namespace, Layout: layout, Checksums: c.Checksums,
		Timeout: milliseconds(c.TimeoutMs), WritePolicy: c.WritePolicy,
	}
	if hasNear(names) && c.SegmentDir == "" {
		return Config{}, fmt.Errorf("%s: kvstore: segment_dir is missing; name a directory on the host's own disk, since storage_backends is where %s has its blocks", segmentName, names[len(names)-1])
	}
	for _, name := range names {
		if err := c.options(name, &to); err != nil {
			return Config{}, fmt.Errorf("%s: %w", name, err)
		}
	}
	return to, nil
}

// options sets the options of one store.
func (c *UCMConfig) options(store string, to *Config) (err error) {
	switch store {
	case cacheName:
		to.Cache, err = c.cache()
	case posixName:
		to.Posix, err = c.posix()
	case ds3fsName:
		to.Ds3fs, err = c.ds3fs()
	case segmentName:
		to.Segment, err = c.segment()
	case pagesName:
		to.Pages, err = c.pages()
	case lmcacheName:
		to.LMCache, err = c.lmcache()
	case gdsName:
		to.Gds, err = c.gds()
	case rtpLlmName:
		to.RtpLlm = clone(c.RtpLlm)
	case kvcmName:
		to.Kvcm = clone(c.Kvcm)
	}
	return err
}

// clone returns a copy of options that were read, nil of none.
func clone[T any](o *T) *T {
	if o == nil {
		return nil
	}
	c := *o
	return &c
}

func milliseconds(ms int) time.Duration { return time.Duration(ms) * time.Millisecond }

// mostGB is the largest size in GiB that a number of bytes can hold.
const mostGB = math.MaxInt64 / gib

// boundsOf has the bounds of keys of our own. Other numbers may be anything from 0 on.
var boundsOf = map[string]ucmkeys.Range{
	"open_files":          upTo(mostOf),
	"segment_capacity_gb": upTo(mostGB),
	"pages_capacity_gb":   upTo(mostGB),
	"pages_rank":          upTo(mostOf),
	"pages_lease_ms":      upTo(int64(mostTimeout / time.Millisecond)),
	"pages_reserve_ms":    upTo(int64(mostTimeout / time.Millisecond)),
	"pages_quarantine_ms": upTo(int64(mostTimeout / time.Millisecond)),
}

func upTo(most int64) ucmkeys.Range { return ucmkeys.Range{Least: 0, Most: most} }

func boundsFor(key string) ucmkeys.Range {
	if is, known := ucmkeys.RangeOf(key); known {
		return is
	}
	if is, known := boundsOf[key]; known {
		return is
	}
	return ucmkeys.Range{Least: 0, Most: math.MaxInt64}
}

// inBounds returns an error for a number that a key may not be.
func inBounds(key string, value int64) error {
	if is := boundsFor(key); !is.Has(value) {
		return fmt.Errorf("%s is %d; it must be from %d to %d", key, value, is.Least, is.Most)
	}
	return nil
}

// check refuses invalid values, and names the key.
func (c *UCMConfig) check() error {
	fields := reflect.ValueOf(c).Elem()
	for i := range fields.NumField() {
		field := fields.Field(i)
		if field.Kind() == reflect.Pointer {
			field = field.Elem()
		} else if field.IsZero() { // the default
			continue
		}
		if field.IsValid() && field.CanInt() {
			if err := inBounds(fields.Type().Field(i).Tag.Get("yaml"), field.Int()); err != nil {
				return fmt.Errorf("kvstore: %w", err)
			}
		}
	}
	if math.IsNaN(c.SegmentCarryFraction) || c.SegmentCarryFraction > 0.5 {
		return fmt.Errorf("kvstore: segment_carry_fraction is %v; it must be at most 0.5", c.SegmentCarryFraction)
	}
	switch c.Checksums {
	case "", ChecksumsAuto, ChecksumsRequire, ChecksumsOff:
	default:
		return fmt.Errorf("kvstore: checksums is %.40q; use auto, require or off", c.Checksums)
	}
	switch c.WritePolicy {
	case "", WriteBack, WriteThrough:
	default:
		return fmt.Errorf("kvstore: write_policy is %.40q; use back or through", c.WritePolicy)
	}
	if !slices.Contains([]string{"", "psync", "aio"}, c.PosixIOEngine) {
		return fmt.Errorf("kvstore: posix_io_engine is %.40q; use psync or aio", c.PosixIOEngine)
	}
	return nil
}

// backends returns the directories of storage_backends.
func (c *UCMConfig) backends() ([]string, error) {
	if c.StorageBackends == "" {
		return nil, errors.New("kvstore: storage_backends is missing; name the directory that holds the blocks")
	}
	return strings.Split(c.StorageBackends, ":"), nil
}

func (c *UCMConfig) posix() (*PosixOptions, error) {
	dirs, err := c.backends()
	o := &PosixOptions{
		Dirs: dirs, DirectIO: c.direct() || c.PosixIOEngine == "aio",
		Transfers: c.PosixDataTransConcurrency, WaitingTransfers: c.WaitingQueueDepth, AcceptedShards: c.RunningQueueDepth,
	}
	if d := c.DataDirShardBytes; d != nil {
		o.KeyDigits = *d
		if *d == 0 {
			o.KeyDigits = OneDir
		}
	}
	return o, err
}

func (c *UCMConfig) ds3fs() (*Ds3fsOptions, error) {
	dirs, err := c.backends()
	if err != nil {
		return nil, err
	}
	return &Ds3fsOptions{
		Mount: dirs[0], Rings: c.StreamNumber, OpenFiles: c.OpenFiles,
		WaitingTransfers: c.WaitingQueueDepth, AcceptedShards: c.RunningQueueDepth, RingOptions: c.rings(),
	}, nil
}

func (c *UCMConfig) rings() RingOptions {
	o := RingOptions{RingEntries: c.IOREntries, BufferBytes: c.BufferSize}
	if c.NUMAID != nil && *c.NUMAID >= 0 {
		o.NUMANode = c.NUMAID
	}
	return o
}

func (c *UCMConfig) segment() (*SegmentOptions, error) {
	dirs := []string{c.SegmentDir}
	if c.SegmentDir == "" {
		var err error
		if dirs, err = c.backends(); err != nil {
			return nil, err
		}
	}
	if len(dirs) > 1 {
		return nil, fmt.Errorf("kvstore: storage_backends names %d directories; Segment has one", len(dirs))
	}
	capacity, err := oneSize("segment_capacity_gb", c.SegmentCapacityGB, "segment_capacity_bytes", c.SegmentCapacityBytes)
	if err != nil {
		return nil, err
	}
	if capacity == 0 {
		return nil, errors.New("kvstore: segment_capacity_gb is missing; say how much of the disk the store may take")
	}
	return &SegmentOptions{
		Dir: dirs[0], CapacityBytes: capacity, SegmentBytes: c.SegmentBytes, CarryFraction: c.SegmentCarryFraction,
		DirectIO: c.direct(), Transfers: c.StreamNumber, WaitingTransfers: c.WaitingQueueDepth,
		WaitingBlocks: c.SegmentWaitingBlocks, FillBytes: c.SegmentFillBytes,
	}, nil
}

func (c *UCMConfig) pages() (*PagesOptions, error) {
	if c.PagesFile == "" {
		return nil, errors.New("kvstore: pages_file is missing; name the file that holds the pages")
	}
	capacity, err := oneSize("pages_capacity_gb", c.PagesCapacityGB, "pages_capacity_bytes", c.PagesCapacityBytes)
	return &PagesOptions{
		URL: c.PagesURL, File: c.PagesFile, CapacityBytes: capacity, Rank: c.PagesRank,
		Lease: milliseconds(c.PagesLeaseMs), Reserve: milliseconds(c.PagesReserveMs), Quarantine: milliseconds(c.PagesQuarantineMs),
		DirectIO: c.direct(), Transfers: c.StreamNumber, WaitingBatches: c.WaitingQueueDepth, RingOptions: c.rings(),
	}, err
}

func (c *UCMConfig) cache() (*CacheOptions, error) {
	capacity, err := oneSize("cache_buffer_capacity_gb", c.CacheBufferCapacityGB, "cache_buffer_bytes", c.CacheBufferBytes)
	o := &CacheOptions{
		CapacityBytes: capacity, Shared: c.ShareBufferEnable,
		Copiers: c.CacheStreamNumber, DeviceStreams: c.CacheStreamNumber, WaitingBlocks: c.WaitingQueueDepth, Policy: CachePolicy(c.CachePolicy),
	}
	if c.ShareBufferEnable {
		o.SharedName = c.UniqueID
	}
	return o, err
}

// direct reports whether io_direct is set. Ds3fs does not read it: through a ring the
// daemon decides.
func (c *UCMConfig) direct() bool { return c.IODirect != nil && *c.IODirect }

// oneSize returns a size that is given in GiB or in bytes.
func oneSize(gbKey string, gb int, bytesKey string, bytes int64) (int64, error) {
	if gb > 0 && bytes > 0 {
		return 0, fmt.Errorf("kvstore: %s and %s are both given; write one", gbKey, bytesKey)
	}
	return max(int64(gb)*gib, bytes), nil
}
