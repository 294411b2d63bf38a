package kvstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache"
	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/files"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/meter"
	"github.com/kv3fs/kv3fs/kvstore/internal/paced"
	"github.com/kv3fs/kv3fs/kvstore/internal/pages"
	"github.com/kv3fs/kv3fs/kvstore/internal/ring"
	"github.com/kv3fs/kv3fs/kvstore/internal/segment"
	"github.com/kv3fs/kv3fs/kvstore/internal/tier"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer"
	"github.com/kv3fs/kv3fs/kvstore/internal/transfer/ringio"
	"github.com/kv3fs/kv3fs/usrbio"
)

// Open opens a chain by its name: a store, or several with bars between them ("Cache|Ds3fs",
// "Cache|Segment|Ds3fs"). [Chains] lists them. The caller closes it.
func Open(chain string, c Config) (*Store, error) {
	return new(Registry).Open(chain, c)
}

// openWith is Open on a host with so much memory that is free.
func (r *Registry) openWith(chain string, c Config, free func(inShm bool) (int64, error)) (*Store, error) {
	names, err := r.parse(chain)
	if err != nil {
		return nil, err
	}
	if err := c.complete(names); err != nil {
		return nil, err
	}
	b := builder{Config: c, namespace: c.Namespace.Fingerprint(), free: free, registry: r}
	last := names[len(names)-1]
	store, err := b.open(last)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", last, err)
	}
	store = b.measured(store, len(names) > 1)
	if hasNear(names) {
		near, err := b.near(store)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", segmentName, err), store.Close())
		}
		store = b.measured(near, names[0] == cacheName)
	}
	if names[0] == cacheName {
		front, err := b.cache(store)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("%s: %w", cacheName, err), store.Close())
		}
		store = meter.New(front, meter.Front, c.Logger)
	}
	if s := c.Speed; s != nil {
		store = paced.New(store, paced.Options{BytesPerSecond: s.BytesPerSecond, Latency: s.Latency})
	}
	c.Logger.Info("opened block store", "chain", chainName(names), "namespace", b.namespace.String(),
		"block_bytes", c.Layout.BlockBytes, "shard_bytes", c.Layout.ShardBytes)
	return &Store{store, b.device}, nil
}

// measured puts a meter around a store.
func (b *builder) measured(store kv.Store, behind bool) kv.Store {
	place := meter.Front
	if behind {
		place = meter.Behind
	}
	if b.rings {
		return meter.NewRegistrar(store, place, b.Logger)
	}
	return meter.New(store, place, b.Logger)
}

// near opens Segment in front of a store that is far.
func (b *builder) near(far kv.Store) (kv.Store, error) {
	near, err := b.segment()
	if err != nil {
		return nil, err
	}
	store, err := tier.New(near, far, tier.Options{
		WriteThrough: b.WritePolicy == WriteThrough, WaitingBlocks: b.Segment.WaitingBlocks, FillBytes: b.Segment.FillBytes,
		Timeout: b.Timeout, Logger: b.Logger,
	})
	if err != nil {
		return nil, errors.Join(err, near.Close())
	}
	return store, nil
}

// plain is a store as the interface, nil where it was not opened.
func plain[S kv.Store](s S, err error) (kv.Store, error) {
	if err != nil {
		return nil, err
	}
	return s, nil
}

// builder opens the stores of a configuration that is complete.
type builder struct {
	Config
	namespace kv.Fingerprint
	device    device.Device // of the chain, or nil
	rings     bool          // the store moves data through rings, so that registered memory helps

	registry *Registry
	// free returns how much memory can still be taken, of /dev/shm or any.
	free func(inShm bool) (int64, error)
}

func (b *builder) layout() kv.Layout       { return kv.Layout(b.Layout) }
func (b *builder) checksums() kv.Checksums { return kv.Checksums(b.Checksums) }

// open opens a store that ends a chain.
func (b *builder) open(name string) (kv.Store, error) {
	switch name {
	case posixName:
		return b.posix()
	case ds3fsName:
		return b.ds3fs()
	case segmentName:
		return b.segment()
	case pagesName:
		return b.pages()
	case lmcacheName:
		return b.lmcache()
	case gdsName:
		return b.gds()
	case rtpLlmName:
		return b.rtpLlm()
	case kvcmName:
		return b.kvcm()
	case emptyName:
		return empty.New(b.layout()), nil
	default: // parse knows no other
		return b.registered(name)
	}
}

func (b *builder) posix() (kv.Store, error) {
	if b.Posix == nil || len(b.Posix.Dirs) == 0 {
		return nil, errors.New("kvstore: Config.Posix.Dirs is empty; name the directories that hold the blocks")
	}
	var digits *int
	switch d := b.Posix.KeyDigits; {
	case d == OneDir:
		digits = new(int)
	case d < 0 || d > 5:
		return nil, fmt.Errorf("kvstore: Config.Posix.KeyDigits is %d; use 1 to 5, or OneDir", d)
	case d > 0:
		digits = &d
	}
	return plain(files.Open(files.Options{
		Dirs: b.Posix.Dirs, Layout: b.layout(), Namespace: b.namespace,
		DirectIO:          b.Posix.DirectIO,
		Streams:           b.Posix.Transfers,
		WaitingQueueDepth: b.Posix.WaitingTransfers,
		RunningQueueDepth: b.Posix.AcceptedShards,
		Timeout:           b.Timeout, DirShardDigits: digits, Checksums: b.checksums(),
	}))
}

func (b *builder) ds3fs() (kv.Store, error) {
	if b.Ds3fs == nil || b.Ds3fs.Mount == "" {
		return nil, errors.New("kvstore: Config.Ds3fs.Mount is empty; name the directory where the 3FS is mounted")
	}
	b.rings = true
	return plain(ring.Open(ring.Options{
		Mount: b.Ds3fs.Mount, Layout: b.layout(), Namespace: b.namespace,
		Streams:           b.Ds3fs.Rings,
		Entries:           b.Ds3fs.RingEntries,
		BufferBytes:       b.bufferBytes(ds3fsName, b.Ds3fs.BufferBytes),
		OpenFiles:         b.Ds3fs.OpenFiles,
		WaitingQueueDepth: b.Ds3fs.WaitingTransfers,
		RunningQueueDepth: b.Ds3fs.AcceptedShards,
		Timeout:           b.Timeout, NUMANode: b.Ds3fs.NUMANode, Checksums: b.checksums(),
	}))
}

func (b *builder) segment() (kv.Store, error) {
	switch {
	case b.Segment == nil || b.Segment.Dir == "":
		return nil, errors.New("kvstore: Config.Segment.Dir is empty; name a directory that holds nothing else")
	case b.Segment.CapacityBytes == 0:
		return nil, errors.New("kvstore: Config.Segment.CapacityBytes is 0; say how much of the disk the store may take")
	}
	return plain(segment.Open(segment.Options{
		Dir: b.Segment.Dir, Layout: b.layout(), Namespace: b.namespace,
		CapacityBytes: b.Segment.CapacityBytes, SegmentBytes: b.Segment.SegmentBytes, CarryFraction: b.Segment.CarryFraction,
		DirectIO: b.Segment.DirectIO,
		Streams:  b.Segment.Transfers, WaitingQueueDepth: b.Segment.WaitingTransfers,
		Timeout: b.Timeout, Checksums: b.checksums(), Logger: b.Logger,
	}))
}

func (b *builder) pages() (kv.Store, error) {
	if b.Pages == nil || b.Pages.File == "" {
		return nil, errors.New("kvstore: Config.Pages.File is empty; name the file that holds the pages")
	}
	o := pages.Options{
		URL: b.Pages.URL, File: b.Pages.File, Rank: b.Pages.Rank, CapacityBytes: b.Pages.CapacityBytes,
		Layout: b.layout(), Namespace: b.namespace, DirectIO: b.Pages.DirectIO,
		Streams:           b.Pages.Transfers,
		WaitingQueueDepth: b.Pages.WaitingBatches,
		Timeout:           b.Timeout, Checksums: b.checksums(),
		Lease: b.Pages.Lease, Reserve: b.Pages.Reserve, Quarantine: b.Pages.Quarantine,
	}
	var err error
	if o.Engine, err = b.ringsFor(filepath.Dir(b.Pages.File)); err != nil {
		return nil, err
	}
	if o.Engine == nil {
		return plain(pages.Open(o))
	}
	b.rings = true
	store, err := pages.Open(o)
	if err != nil {
		return nil, errors.Join(err, o.Engine.Close())
	}
	return store, nil
}

// ringsFor returns an engine that uses rings if dir is on a 3FS, else nil.
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
		Entries:           b.Pages.RingEntries,
		BufferBytes:       b.bufferBytes(pagesName, b.Pages.BufferBytes),
		WaitingQueueDepth: b.Pages.WaitingBatches,
		Timeout:           b.Timeout, NUMANode: b.Pages.NUMANode,
	})
}

func (b *builder) cache(next kv.Store) (kv.Store, error) {
	given := b.Cache
	if b.device = given.Device; b.device == nil {
		b.device = device.NewHost(device.HostOptions{})
	}
	o := cache.Options{
		Namespace:         b.namespace,
		Streams:           given.Copiers,
		Device:            b.device,
		DeviceStreams:     given.DeviceStreams,
		WaitingQueueDepth: given.WaitingBlocks,
		Timeout:           b.Timeout, Policy: string(given.Policy), Checksums: b.checksums(),
		WriteThrough: b.WritePolicy == WriteThrough,
	}
	switch {
	case given.Shared:
		o.SharedName = cmp.Or(given.SharedName, b.namespace.String())
	case given.SharedName != "":
		return nil, errors.New("kvstore: Config.Cache.SharedName is set without Shared; set both or neither")
	}
	var err error
	if o.CapacityBytes, err = b.cacheBytes(); err != nil {
		return nil, err
	}
	return plain(cache.New(next, o))
}

// cacheBytes returns the size of the cache. By default it is at most half of what is free.
func (b *builder) cacheBytes() (int64, error) {
	inShm := b.Cache.Shared || b.rings
	given := b.Cache.CapacityBytes
	if given == 0 {
		standard := int64(defaultCacheGB)
		if b.Cache.Shared {
			standard = defaultSharedCacheGB
		}
		free, err := b.free(inShm)
		if err != nil {
			return 0, fmt.Errorf("kvstore: find out how much memory is free: %w; set Config.Cache.CapacityBytes (cache_buffer_capacity_gb)", err)
		}
		given = min(standard*gib, free/2)
	}
	return b.fit("the cache", given, inShm), nil
}
