package kvstore

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/layout/lmcache"
	"github.com/kv3fs/kv3fs/internal/rtpkeys"
	"github.com/kv3fs/kv3fs/internal/ucmkeys"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// Config configures a chain. Namespace and Layout are required, and so are the options
// of the stores of the chain that have required fields. The zero value of any other
// field means its default. Options of a store that the chain does not have are an error.
//
// [ReadConfig] reads UCM's configuration files and makes a Config of them.
type Config struct {
	// Namespace is what decides the bytes of blocks besides their tokens. Blocks of
	// another namespace are misses.
	Namespace keys.Namespace

	// Layout is the size of blocks and of their shards. Where ShardBytes is 0, a block
	// is one shard.
	Layout Layout

	// Timeout bounds every wait: it ends when nothing has progressed for so long. A shard
	// may wait longer behind others that are moved. Default 30 s.
	Timeout time.Duration

	// Checksums says how checksums are used. Default ChecksumsAuto.
	Checksums Checksums

	// WritePolicy says when a save is done in a chain of several stores. Default WriteBack.
	WritePolicy WritePolicy

	// Logger receives what an operator wants to know: the chain that was opened, damaged
	// blocks, blocks that were dropped, storage that did not answer. At debug level it also
	// receives the lines that UCM documents: the beginning and the end of each task, and
	// what each lookup has found. Default: see [NewUCMLogger].
	Logger *slog.Logger `json:"-"`

	// Options of each store.
	Cache   *CacheOptions
	Posix   *PosixOptions
	Ds3fs   *Ds3fsOptions
	Segment *SegmentOptions
	Pages   *PagesOptions
	LMCache *LMCacheOptions
	Gds     *GdsOptions
	RtpLlm  *RtpLlmOptions
	Kvcm    *KvcmOptions

	// Registered are the options of a store of the program's own, see [Registry].
	Registered *RegisteredOptions

	// Speed slows the chain down, for benchmarks and tests of engines. Default: as fast
	// as it is.
	Speed *Speed
}

// WritePolicy says when a save is done in a chain of several stores.
type WritePolicy string

const (
	// WriteBack, the default: when the first store has the block. It gets to the others in the
	// background; Flush waits for that.
	WriteBack WritePolicy = "back"
	// WriteThrough: when the last store has it, too. Of a block that is saved in parts, its
	// last part waits.
	WriteThrough WritePolicy = "through"
)

// CachePolicy says which blocks a cache evicts first.
type CachePolicy string

const (
	// CacheLRU, the default, evicts the blocks that were not used for the longest time.
	CacheLRU CachePolicy = "lru"
	// CacheAged counts uses, too: each keeps a block 150 s longer, at most five times,
	// so that a prompt that all users share outlives the chat of one.
	CacheAged CachePolicy = "aged"
)

// CacheOptions configure Cache, which keeps blocks in host memory.
type CacheOptions struct {
	// CapacityBytes is the size of the cache. Default 64 GiB, or 256 GiB where it is
	// Shared, but at most half of the memory that is free. More than is free is reduced to
	// half of that, and the log says so. The first process decides the size of a shared
	// cache.
	CapacityBytes int64

	// Shared lets processes of the same user and SharedName use one cache.
	Shared bool
	// SharedName names the shared cache. Default: the namespace's fingerprint.
	SharedName string

	// Copiers is how many goroutines copy. Default 4, but at most one for each processor.
	Copiers int

	// Device is the accelerator whose memory shards may name; the cache's memory is pinned
	// for it, all of it when the chain is opened. It stays the caller's, to be closed after
	// the store. Default: a device whose memory is the host's, see [Store.Device].
	Device device.Device `json:"-"`
	// DeviceStreams is how many copies to and from the device run at once. Default 4.
	DeviceStreams int

	// WaitingBlocks is how many blocks may wait to be written to the next store before
	// Save waits. Default 8192.
	WaitingBlocks int

	Policy CachePolicy
}

// OneDir is a [PosixOptions.KeyDigits] that puts all blocks into one directory.
const OneDir = -1

// PosixOptions configure Posix, which keeps a file for each block in any directory.
// UCM's Posix store can use the same directories.
type PosixOptions struct {
	// Dirs are where the blocks are, on one disk each, for example. Required. A block's
	// key decides which one it is written to.
	Dirs []string

	// DirectIO bypasses the page cache.
	DirectIO bool

	// Transfers is how many reads and writes run at once. Default 128.
	Transfers int
	// WaitingTransfers is how many more may wait. Default 1024.
	WaitingTransfers int
	// AcceptedShards is how many shards may be under way before Load and Save wait.
	// Default 32768.
	AcceptedShards int

	// KeyDigits is how many hexadecimal digits of its key name a block's directory, at
	// most 5, or OneDir. Default 3. UCM, where it uses the same blocks, must have the
	// same number.
	KeyDigits int
}

// Ds3fsOptions configure Ds3fs, which keeps a file for each block on a 3FS or kv3fs
// mount and moves its data through rings. UCM's Ds3fs store can use the same mount.
type Ds3fsOptions struct {
	// Mount is where the file system is mounted. Required.
	Mount string

	// Rings is how many rings there are in each direction. Default 2.
	Rings int
	// WaitingTransfers is how many requests may wait for a ring. Default 1024.
	WaitingTransfers int
	// AcceptedShards is how many shards may be under way before Load and Save wait.
	// Default 32768.
	AcceptedShards int
	// OpenFiles is how many files stay open and registered. Default 1024.
	OpenFiles int

	RingOptions
}

// RingOptions configure the rings of Ds3fs, and those of Pages on a 3FS.
type RingOptions struct {
	// RingEntries is how many requests each ring has in flight. Default 64.
	RingEntries int
	// BufferBytes is the size of the shared memory for data whose buffers are not
	// registered. Default 64 MiB. More than is free is reduced to half of that, and the
	// log says so.
	BufferBytes int64
	// NUMANode is the node to take that memory from. Default any.
	NUMANode *int
}

// SegmentOptions configure Segment, which packs blocks into large files.
type SegmentOptions struct {
	// Dir holds nothing else. Required.
	Dir string

	// CapacityBytes is what the directory takes on the disk at most, and all at once when
	// the store is opened. Required.
	CapacityBytes int64
	// SegmentBytes is the size of each file. Default 1 GiB, less in a small store.
	SegmentBytes int64
	// CarryFraction is how much of a file that is reused may be blocks that were hit, and
	// are kept. Default 0.25; at most 0.5; none where negative.
	CarryFraction float64

	// DirectIO bypasses the page cache.
	DirectIO bool
	// Transfers is how many reads and writes run at once. Default 32.
	Transfers int
	// WaitingTransfers is how many more may wait. Default 1024.
	WaitingTransfers int

	// In front of another store:

	// WaitingBlocks is how many blocks may wait to be sent to that store. Default 8192. Save
	// waits while there are more, unless that store does not answer.
	WaitingBlocks int
	// FillBytes is the memory for blocks that came from that store, until Segment has them.
	// Default 256 MiB. A block that finds no place there is read a second time, in the
	// background.
	FillBytes int64
}

// PagesOptions configure Pages, which keeps blocks in pages of one file that a page
// service hands out, so that many processes share it.
type PagesOptions struct {
	// URL is the page service: http://HOST:PORT, with a token
	// http://kv3fs:TOKEN@HOST:PORT, or unix:PATH. Default http://127.0.0.1:18000.
	URL string

	// File holds the pages. Required. All processes that use it use one service.
	File string
	// CapacityBytes is the size of a file that is made. Without it the file must exist.
	CapacityBytes int64
	// Rank is the rank whose pages these are. Default 0.
	Rank int

	// Lease, Reserve and Quarantine are those of the service: its --pages-lease,
	// --pages-reserve and --pages-quarantine. Defaults 30 s, 60 s and 10 s, as there. If
	// larger than the service's, writes are wasted. Timeout must be below Reserve.
	Lease, Reserve, Quarantine time.Duration

	// DirectIO bypasses the page cache.
	DirectIO bool
	// Transfers is how many reads and writes run at once. Default 32.
	Transfers int
	// WaitingBatches is how many batches are accepted before Load and Save wait, and on a
	// 3FS how many requests may wait for a ring. Default 1024.
	WaitingBatches int

	RingOptions
}

// Speed describes a simulated storage. The shards of a batch go one after the other
// through a pipe that all batches in the same direction share, and are settled in the
// order given: when the pipe has let them through and the chain has moved them,
// whichever is later. Lookups are not slowed down.
type Speed struct {
	BytesPerSecond float64       // in each direction; 0: no bound
	Latency        time.Duration // of each shard, besides its bytes
}

// complete checks what concerns more than one store, and fills in defaults.
func (c *Config) complete(chain []string) error {
	if err := c.Namespace.Check(); err != nil {
		return err
	}
	if c.Layout.ShardBytes == 0 {
		c.Layout.ShardBytes = c.Layout.BlockBytes
	}
	if err := c.Layout.Check(); err != nil {
		return err
	}
	switch {
	case c.Timeout < 0 || c.Timeout > mostTimeout:
		return fmt.Errorf("kvstore: Config.Timeout is %v; it must be from 0 to %v", c.Timeout, mostTimeout)
	case c.Timeout == 0:
		c.Timeout = defaultTimeout
	}
	switch c.Checksums {
	case "", ChecksumsAuto, ChecksumsRequire, ChecksumsOff:
	default:
		return fmt.Errorf("kvstore: Config.Checksums is %.40q; use auto, require or off", c.Checksums)
	}
	switch c.WritePolicy {
	case "", WriteBack, WriteThrough:
	default:
		return fmt.Errorf("kvstore: Config.WritePolicy is %.40q; use back or through", c.WritePolicy)
	}
	if s := c.Speed; s != nil && (s.BytesPerSecond < 0 || s.Latency < 0 || math.IsNaN(s.BytesPerSecond)) {
		return errors.New("kvstore: Config.Speed is negative or not a number; use 0 for no bound")
	}
	if c.Logger == nil {
		c.Logger = defaultLogger()
	}
	for _, options := range []struct {
		store string
		given bool
	}{
		{cacheName, c.Cache != nil}, {posixName, c.Posix != nil}, {ds3fsName, c.Ds3fs != nil},
		{segmentName, c.Segment != nil}, {pagesName, c.Pages != nil},
		{lmcacheName, c.LMCache != nil}, {gdsName, c.Gds != nil}, {rtpLlmName, c.RtpLlm != nil}, {kvcmName, c.Kvcm != nil},
	} {
		if options.given && !slices.Contains(chain, options.store) {
			return fmt.Errorf("kvstore: Config.%s is set, and the chain %s has no %s; remove the options or add the store",
				options.store, chainName(chain), options.store)
		}
	}
	if back := chain[len(chain)-1]; c.Registered != nil && slices.Contains(backs, back) {
		return fmt.Errorf("kvstore: Config.Registered is set, and %s is a store of this package; remove the options, or name a store that was registered", back)
	}
	if err := c.checkNumbers(); err != nil {
		return err
	}
	c.fillDefaults(chain)
	return nil
}

const (
	// mostOf is how many of anything that is counted a Config may ask for: far more than
	// there can be, and few enough to add and multiply.
	mostOf = 1 << 30

	// mostThreads is how many goroutines a store starts, mostRings how many rings.
	mostThreads = 4096
	mostRings   = ucmkeys.MostStreams

	// mostFileBlocks is how many blocks a file of an engine's may have: a lookup of the first
	// block that is missing asks for so many files.
	mostFileBlocks = rtpkeys.MostFileBlocks

	mostRingEntries = ucmkeys.MostRingEntries
	mostNUMA        = 1023
	mostTimeout     = ucmkeys.MostTimeoutMs * time.Millisecond
)

// checkNumbers refuses invalid numbers, and names the field.
func (c *Config) checkNumbers() error {
	type number struct {
		field       string
		value, most int64
	}
	var all []number
	add := func(field string, value int64) { all = append(all, number{field, value, math.MaxInt64}) }
	upTo := func(most int64, field string, value int64) { all = append(all, number{field, value, most}) }
	count := func(field string, value int) { upTo(mostOf, field, int64(value)) }
	threads := func(field string, value int) { upTo(mostThreads, field, int64(value)) }
	timeout := func(field string, value time.Duration) { upTo(int64(mostTimeout), field, int64(value)) }
	rings := func(store string, r RingOptions) {
		upTo(mostRingEntries, store+".RingEntries", int64(r.RingEntries))
		add(store+".BufferBytes", r.BufferBytes)
		if r.NUMANode != nil {
			upTo(mostNUMA, store+".NUMANode", int64(*r.NUMANode))
		}
	}
	if o := c.Registered; o != nil {
		add("Registered.UnfinishedBytes", o.UnfinishedBytes)
	}
	if o := c.Cache; o != nil {
		add("Cache.CapacityBytes", o.CapacityBytes)
		threads("Cache.Copiers", o.Copiers)
		threads("Cache.DeviceStreams", o.DeviceStreams)
		count("Cache.WaitingBlocks", o.WaitingBlocks)
	}
	if o := c.Posix; o != nil {
		threads("Posix.Transfers", o.Transfers)
		count("Posix.WaitingTransfers", o.WaitingTransfers)
		count("Posix.AcceptedShards", o.AcceptedShards)
	}
	if o := c.Ds3fs; o != nil {
		upTo(mostRings, "Ds3fs.Rings", int64(o.Rings))
		count("Ds3fs.WaitingTransfers", o.WaitingTransfers)
		count("Ds3fs.AcceptedShards", o.AcceptedShards)
		count("Ds3fs.OpenFiles", o.OpenFiles)
		rings("Ds3fs", o.RingOptions)
	}
	if o := c.Segment; o != nil {
		add("Segment.CapacityBytes", o.CapacityBytes)
		add("Segment.SegmentBytes", o.SegmentBytes)
		threads("Segment.Transfers", o.Transfers)
		count("Segment.WaitingTransfers", o.WaitingTransfers)
		count("Segment.WaitingBlocks", o.WaitingBlocks)
		add("Segment.FillBytes", o.FillBytes)
	}
	if o := c.Pages; o != nil {
		add("Pages.CapacityBytes", o.CapacityBytes)
		count("Pages.Rank", o.Rank)
		timeout("Pages.Lease", o.Lease)
		timeout("Pages.Reserve", o.Reserve)
		timeout("Pages.Quarantine", o.Quarantine)
		threads("Pages.Transfers", o.Transfers)
		count("Pages.WaitingBatches", o.WaitingBatches)
		rings("Pages", o.RingOptions)
	}
	if o := c.LMCache; o != nil {
		count("LMCache.WorldSize", o.WorldSize)
		threads("LMCache.Transfers", o.Transfers)
		upTo(mostRings, "LMCache.Rings", int64(o.Rings))
		count("LMCache.WaitingTransfers", o.WaitingTransfers)
		count("LMCache.AcceptedShards", o.AcceptedShards)
		count("LMCache.OpenFiles", o.OpenFiles)
		upTo(lmcache.MostSubdirs, "LMCache.HashSubdirLevels", int64(o.HashSubdirLevels))
		rings("LMCache", o.RingOptions)
	}
	if o := c.Gds; o != nil {
		count("Gds.GPU", o.GPU)
		add("Gds.BufferBytes", o.BufferBytes)
		count("Gds.WorldSize", o.WorldSize)
		count("Gds.WorkerID", o.WorkerID)
		count("Gds.MemoryFormat", o.MemoryFormat)
		threads("Gds.Transfers", o.Transfers)
		count("Gds.WaitingTransfers", o.WaitingTransfers)
		count("Gds.AcceptedShards", o.AcceptedShards)
	}
	engineFiles := func(store string, o EngineFileOptions) {
		upTo(mostRings, store+".Rings", int64(o.Rings))
		threads(store+".Transfers", o.Transfers)
		count(store+".WaitingTransfers", o.WaitingTransfers)
		count(store+".AcceptedShards", o.AcceptedShards)
		count(store+".OpenFiles", o.OpenFiles)
		rings(store, o.RingOptions)
	}
	if o := c.RtpLlm; o != nil {
		upTo(mostFileBlocks, "RtpLlm.ItemBlocks", int64(o.ItemBlocks))
		upTo(math.MaxUint8, "RtpLlm.DType", int64(o.DType))
		engineFiles("RtpLlm", o.EngineFileOptions)
	}
	if o := c.Kvcm; o != nil {
		upTo(mostFileBlocks, "Kvcm.FileBlocks", int64(o.FileBlocks))
		engineFiles("Kvcm", o.EngineFileOptions)
	}
	for _, n := range all {
		if n.value < 0 || n.value > n.most {
			return fmt.Errorf("kvstore: Config.%s is %d; it must be from 0 to %d", n.field, n.value, n.most)
		}
	}
	if o := c.Segment; o != nil && math.IsNaN(o.CarryFraction) {
		return errors.New("kvstore: Config.Segment.CarryFraction is not a number")
	}
	return nil
}
