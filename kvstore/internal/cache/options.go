package cache

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// Options are the options of New. The zero value is good for trying the cache out.
type Options struct {
	// CapacityBytes is the memory for blocks, each rounded up to 4096 bytes; 1 GiB. The
	// first process that opens a shared cache decides.
	CapacityBytes int64

	// SharedName lets several processes of one user on this host share one cache: those
	// that give the same name. The cache lives until the last of them has closed it; if
	// they were killed, the next process finds their blocks. Empty: not shared.
	//
	// The memory is /dev/shm/kv3fs-mem-cache-<name>. Only caches may write to it, and
	// nothing may shrink it. A cache whose memory is shrunk goes on without it, but what
	// next was moving at that moment may end the process (SIGBUS), or be stored wrong.
	SharedName string

	// Namespace is that of the blocks. Processes that share a cache must have the same.
	Namespace kv.Fingerprint

	// Streams is the number of goroutines that copy; by default one for each processor, at
	// most 4.
	Streams int

	// Device is the device whose memory shards may name; default none. The cache's memory
	// is registered with it. It stays the caller's to close, after the store.
	Device device.Device
	// DeviceStreams is how many copies to and from the device run at once; 4, as in UCM.
	DeviceStreams int
	// StagingBytes is the pinned memory for blocks that get no slot on their way to or from
	// the device; 64 MiB. There is enough for two blocks, and for 64 at most.
	StagingBytes int64

	// WaitingQueueDepth is how many blocks may wait to be written to next; 8192. Saves
	// wait while there are more, or while they take three quarters of the memory.
	WaitingQueueDepth int

	// WriteThrough makes the last shard of a block that is saved wait until next has the block.
	WriteThrough bool

	// Timeout bounds how long a Save waits for space, how long a block waits for its
	// missing shards, and how long Close takes to write what was accepted to next. It is
	// also how long memory is not used into which the storage of a killed process may
	// still write. 30 s.
	Timeout time.Duration

	// Policy says which blocks are evicted first. "lru", the default, evicts those not
	// used for the longest time. With "aged" each use keeps a block 150 s longer, at most
	// five times, so that a prompt that all requests share outlives a single chat.
	Policy string

	// Checksums: with kv.ChecksumsOff, loads from memory are not checked unless the cache
	// is shared.
	Checksums kv.Checksums
}

const fewestBlocks = 4

// complete fills in defaults and returns what is wrong with the options.
func (o *Options) complete(l kv.Layout) error {
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 1 << 30
	}
	if o.Streams == 0 {
		o.Streams = min(4, runtime.NumCPU())
	}
	if o.DeviceStreams == 0 {
		o.DeviceStreams = 4
	}
	if o.StagingBytes == 0 {
		o.StagingBytes = 64 << 20
	}
	if o.WaitingQueueDepth == 0 {
		o.WaitingQueueDepth = 8192
	}
	if o.Timeout == 0 {
		o.Timeout = 30 * time.Second
	}
	if o.Policy == "" {
		o.Policy = "lru"
	}
	if err := l.Check(); err != nil {
		return err
	}
	slotBytes := table.SlotBytes(l)
	switch {
	case o.Streams < 0 || o.DeviceStreams < 0 || o.WaitingQueueDepth < 0 || o.Timeout < 0 || o.CapacityBytes < 0:
		return fmt.Errorf("kvstore: cache: capacity %d, streams %d, of the device %d, waiting_queue_depth %d, timeout %v: none may be below 0",
			o.CapacityBytes, o.Streams, o.DeviceStreams, o.WaitingQueueDepth, o.Timeout)
	case policies(o.Policy) == nil:
		return fmt.Errorf("kvstore: cache: policy %q is unknown; there are lru and aged", o.Policy)
	case o.CapacityBytes/slotBytes < fewestBlocks:
		return fmt.Errorf("kvstore: cache: %d bytes hold %d blocks of %d; make it %d or more",
			o.CapacityBytes, o.CapacityBytes/slotBytes, slotBytes, fewestBlocks*slotBytes)
	case o.CapacityBytes/slotBytes > 1<<30:
		return fmt.Errorf("kvstore: cache: %d bytes hold more than 2^30 blocks of %d; make it smaller", o.CapacityBytes, slotBytes)
	case strings.ContainsAny(o.SharedName, "/\x00") || len(o.SharedName) > 200:
		return fmt.Errorf("kvstore: cache: shared name %.40q: up to 200 characters without a slash", o.SharedName)
	}
	switch o.Checksums {
	case "", kv.ChecksumsAuto, kv.ChecksumsRequire, kv.ChecksumsOff:
	default:
		return fmt.Errorf("kvstore: cache: checksums %q; there are auto, require and off", o.Checksums)
	}
	return nil
}

func policies(name string) table.Policy {
	switch name {
	case "lru":
		return table.LRU
	case "aged":
		return table.Aged
	}
	return nil
}

// config returns the options of the table.
func (o *Options) config(l kv.Layout) table.Config {
	return table.Config{
		Layout:        l,
		Namespace:     o.Namespace,
		CapacityBytes: o.CapacityBytes,
		LockWait:      min(o.Timeout, time.Second),
		Grace:         o.Timeout,
		Verify:        o.SharedName != "" || o.Checksums != kv.ChecksumsOff,
	}
}

// checkMemory returns an error if this machine probably has too little memory. Private
// memory is taken only when it is touched, which is too late to fail.
func checkMemory(sizeBytes int64) error {
	free, err := host.Host{Root: "/"}.MemoryAvailableBytes()
	if err == nil && sizeBytes > free {
		return fmt.Errorf("kvstore: cache: it takes %d bytes and this machine has %d left; make it smaller", sizeBytes, free)
	}
	return nil
}
