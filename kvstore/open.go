package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/kvstore/cache"
	"github.com/kv3fs/kv3fs/kvstore/empty"
	"github.com/kv3fs/kv3fs/kvstore/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/kvstore/kv"
	"github.com/kv3fs/kv3fs/kvstore/pages"
	"github.com/kv3fs/kv3fs/kvstore/ring"
	"github.com/kv3fs/kv3fs/kvstore/segment"
	"github.com/kv3fs/kv3fs/usrbio"
)

const (
	defaultTimeoutMs     = 30_000
	defaultPagesURL      = "http://127.0.0.1:18000"
	defaultCacheGB       = 32
	defaultSharedCacheGB = 256

	gib = 1 << 30
)

// Open opens a chain by its name: a store, or Cache and a store with a bar between
// them ("Cache|Ds3fs"). It is the caller's to Close.
func Open(chain string, c Config) (Store, error) {
	names, err := parseChain(chain)
	if err != nil {
		return nil, err
	}
	layout, err := c.Layout()
	if err != nil {
		return nil, err
	}
	if err := c.check(); err != nil {
		return nil, err
	}
	b := builder{Config: c, layout: layout, namespace: c.Namespace.Fingerprint(), timeout: time.Duration(cmp.Or(c.TimeoutMs, defaultTimeoutMs)) * time.Millisecond}
	back := names[len(names)-1]
	store, err := b.back(back)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", back, err)
	}
	if names[0] != cacheName {
		return store, nil
	}
	front, err := b.cache(store)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("%s: %w", cacheName, err), store.Close())
	}
	return front, nil
}

// check refuses numbers that cannot be, naming the key.
func (c *Config) check() error {
	if err := c.Namespace.Check(); err != nil {
		return err
	}
	for _, n := range []struct {
		key   string
		value int64
	}{
		{"timeout_ms", int64(c.TimeoutMs)}, {"stream_number", int64(c.StreamNumber)},
		{"waiting_queue_depth", int64(c.WaitingQueueDepth)}, {"running_queue_depth", int64(c.RunningQueueDepth)},
		{"ior_entries", int64(c.IOREntries)}, {"buffer_size", c.BufferSize}, {"open_files", int64(c.OpenFiles)},
		{"cache_buffer_capacity_gb", int64(c.CacheBufferCapacityGB)}, {"cache_buffer_bytes", c.CacheBufferBytes},
		{"cache_stream_number", int64(c.CacheStreamNumber)}, {"posix_data_trans_concurrency", int64(c.PosixDataTransConcurrency)},
		{"segment_capacity_gb", int64(c.SegmentCapacityGB)}, {"segment_capacity_bytes", c.SegmentCapacityBytes},
		{"segment_bytes", c.SegmentBytes}, {"pages_capacity_gb", int64(c.PagesCapacityGB)},
		{"pages_capacity_bytes", c.PagesCapacityBytes}, {"pages_rank", int64(c.PagesRank)},
		{"pages_lease_ms", int64(c.PagesLeaseMs)}, {"pages_reserve_ms", int64(c.PagesReserveMs)}, {"pages_quarantine_ms", int64(c.PagesQuarantineMs)},
	} {
		if n.value < 0 {
			return fmt.Errorf("kvstore: %s is %d; it cannot be negative", n.key, n.value)
		}
	}
	switch c.Checksums {
	case "", kv.ChecksumsAuto, kv.ChecksumsRequire, kv.ChecksumsOff:
	default:
		return fmt.Errorf("kvstore: checksums is %.40q; write auto, require or off", c.Checksums)
	}
	switch c.PosixIOEngine {
	case "", "psync", "aio":
	default:
		return fmt.Errorf("kvstore: posix_io_engine is %.40q; write psync, or aio", c.PosixIOEngine)
	}
	if d := c.DataDirShardBytes; d != nil && (*d < 0 || *d > 5) {
		return fmt.Errorf("kvstore: data_dir_shard_bytes is %d; write 0 to 5", *d)
	}
	return nil
}

// builder is a configuration with what all stores take from it.
type builder struct {
	Config
	layout    kv.Layout
	namespace kv.Fingerprint
	timeout   time.Duration
}

func (b *builder) back(name string) (kv.Store, error) {
	switch name {
	case posixName:
		return b.posix()
	case ds3fsName:
		return b.ds3fs()
	case segmentName:
		return b.segment()
	case pagesName:
		return b.pages()
	default: // parseChain knows no other
		return empty.New(b.layout), nil
	}
}

// backends are the directories of storage_backends.
func (b *builder) backends() ([]string, error) {
	if b.StorageBackends == "" {
		return nil, errors.New("kvstore: storage_backends is missing; write the directory that holds the blocks")
	}
	return strings.Split(b.StorageBackends, ":"), nil
}

func (b *builder) posix() (kv.Store, error) {
	dirs, err := b.backends()
	if err != nil {
		return nil, err
	}
	return withoutRings(files.Open(files.Options{
		Dirs: dirs, Layout: b.layout, Namespace: b.namespace,
		DirectIO:          b.IODirect != nil && *b.IODirect || b.PosixIOEngine == "aio",
		Streams:           b.PosixDataTransConcurrency,
		WaitingQueueDepth: b.WaitingQueueDepth,
		RunningQueueDepth: b.RunningQueueDepth,
		Timeout:           b.timeout, DirShardDigits: b.DataDirShardBytes, Checksums: b.Checksums,
	}))
}

func (b *builder) ds3fs() (kv.Store, error) {
	dirs, err := b.backends()
	if err != nil {
		return nil, err
	}
	return ring.Open(ring.Options{
		Mount: dirs[0], Layout: b.layout, Namespace: b.namespace,
		DirectIO:          b.IODirect == nil || *b.IODirect,
		Streams:           b.StreamNumber,
		Entries:           b.IOREntries,
		BufferBytes:       b.BufferSize,
		OpenFiles:         b.OpenFiles,
		WaitingQueueDepth: b.WaitingQueueDepth,
		RunningQueueDepth: b.RunningQueueDepth,
		Timeout:           b.timeout, NUMANode: b.numaNode(), Checksums: b.Checksums,
	})
}

func (b *builder) segment() (kv.Store, error) {
	dirs, err := b.backends()
	if err != nil {
		return nil, err
	}
	if len(dirs) > 1 {
		return nil, fmt.Errorf("kvstore: storage_backends names %d directories; Segment has one", len(dirs))
	}
	capacity, err := oneSize("segment_capacity_gb", b.SegmentCapacityGB, "segment_capacity_bytes", b.SegmentCapacityBytes)
	if err != nil {
		return nil, err
	}
	if capacity == 0 {
		return nil, errors.New("kvstore: segment_capacity_gb is missing; write how much the store may hold")
	}
	return withoutRings(segment.Open(segment.Options{
		Dir: dirs[0], Layout: b.layout, Namespace: b.namespace,
		CapacityBytes: capacity, SegmentBytes: b.SegmentBytes, CarryFraction: b.SegmentCarryFraction,
		DirectIO: b.IODirect != nil && *b.IODirect,
		Streams:  b.StreamNumber, WaitingQueueDepth: b.WaitingQueueDepth,
		Timeout: b.timeout, Checksums: b.Checksums,
	}))
}

// withoutRings hides that a store takes memory to be registered: moved by system
// calls, bytes go to any memory directly, and a cache in front would put its own
// into /dev/shm for nothing.
func withoutRings[S kv.Store](s S, err error) (kv.Store, error) {
	if err != nil {
		return nil, err
	}
	return struct{ kv.Store }{s}, nil
}

func (b *builder) pages() (kv.Store, error) {
	if b.PagesFile == "" {
		return nil, errors.New("kvstore: pages_file is missing; write the path of the file that holds the pages")
	}
	capacity, err := oneSize("pages_capacity_gb", b.PagesCapacityGB, "pages_capacity_bytes", b.PagesCapacityBytes)
	if err != nil {
		return nil, err
	}
	o := pages.Options{
		URL: cmp.Or(b.PagesURL, defaultPagesURL), File: b.PagesFile, Rank: b.PagesRank, CapacityBytes: capacity,
		Layout: b.layout, Namespace: b.namespace, DirectIO: b.IODirect != nil && *b.IODirect,
		Streams:           b.StreamNumber,
		WaitingQueueDepth: b.WaitingQueueDepth,
		Timeout:           b.timeout, Checksums: b.Checksums,
		Lease:      time.Duration(b.PagesLeaseMs) * time.Millisecond,
		Reserve:    time.Duration(b.PagesReserveMs) * time.Millisecond,
		Quarantine: time.Duration(b.PagesQuarantineMs) * time.Millisecond,
	}
	if o.Engine, err = b.ringsFor(filepath.Dir(b.PagesFile)); err != nil {
		return nil, err
	}
	if o.Engine == nil {
		return withoutRings(pages.Open(o))
	}
	store, err := pages.Open(o)
	if err != nil {
		return nil, errors.Join(err, o.Engine.Close())
	}
	return store, nil
}

// ringsFor is an engine that uses the rings where dir is on a 3FS, else nil.
func (b *builder) ringsFor(dir string) (transfer.Engine, error) {
	mount, err := usrbio.FindMount(context.Background(), dir)
	if errors.Is(err, usrbio.ErrNotMounted) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ringio.New(ringio.Options{
		Mount:             mount,
		Entries:           b.IOREntries,
		BufferBytes:       b.BufferSize,
		WaitingQueueDepth: b.WaitingQueueDepth,
		Timeout:           b.timeout, NUMANode: b.numaNode(),
	})
}

func (b *builder) numaNode() *int {
	if b.NUMAID == nil || *b.NUMAID < 0 {
		return nil
	}
	return b.NUMAID
}

func (b *builder) cache(next kv.Store) (kv.Store, error) {
	o := cache.Options{
		Namespace:         b.namespace,
		CapacityBytes:     b.CacheBufferBytes,
		Streams:           b.CacheStreamNumber,
		WaitingQueueDepth: b.WaitingQueueDepth,
		Timeout:           b.timeout, Policy: b.CachePolicy, Checksums: b.Checksums,
	}
	standard := int64(defaultCacheGB)
	if b.ShareBufferEnable {
		o.SharedName = cmp.Or(b.UniqueID, b.namespace.String())
		standard = defaultSharedCacheGB
	}
	switch {
	case o.CapacityBytes > 0 && b.CacheBufferCapacityGB > 0:
		return nil, errors.New("kvstore: cache_buffer_capacity_gb and cache_buffer_bytes are both given; write one")
	case b.CacheBufferCapacityGB > 0:
		o.CapacityBytes = int64(b.CacheBufferCapacityGB) * gib
	case o.CapacityBytes == 0:
		free, err := host.Local().MemoryAvailableBytes()
		if err != nil {
			return nil, fmt.Errorf("kvstore: how much memory is free: %w; write cache_buffer_capacity_gb", err)
		}
		o.CapacityBytes = min(standard*gib, free/2)
	}
	return cache.New(next, o)
}

// oneSize is a size that is given in GiB or in bytes.
func oneSize(gbKey string, gb int, bytesKey string, bytes int64) (int64, error) {
	switch {
	case gb > 0 && bytes > 0:
		return 0, fmt.Errorf("kvstore: %s and %s are both given; write one", gbKey, bytesKey)
	}
	return max(int64(gb)*gib, bytes), nil
}
