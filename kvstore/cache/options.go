package cache

import (
	"fmt"
	"runtime"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/host"
	"github.com/kv3fs/kv3fs/kvstore/cache/table"
	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// Options says how a cache is made. The zero value is right for trying it out.
type Options struct {
	// CapacityBytes is the memory for blocks, each rounded up to 4096 bytes; 1 GiB.
	// Of a shared cache the first process decides.
	CapacityBytes int64

	// SharedName makes processes of one user on this host that give the same name
	// share one cache. It lives until the last of them has closed it; when they were
	// killed, the next finds their blocks. Empty: not shared.
	//
	// The memory is /dev/shm/kv3fs-mem-cache-<name>, which nobody may shrink or write
	// to but caches. A cache whose memory is shrunk goes on without it; what next was
	// moving at that moment may end the process (SIGBUS), or be stored wrong.
	SharedName string

	// Namespace is that of the blocks. Those who share a cache have the same.
	Namespace kv.Fingerprint

	// Streams is how many goroutines copy; as many as there are processors, at most 4.
	Streams int

	// WaitingQueueDepth is how many blocks may wait for next; 8192. Saves wait when
	// there are more, or when three quarters of the memory are taken by such blocks.
	WaitingQueueDepth int

	// Timeout is how long a save waits for space and a block for its missing shards, how
	// long Close takes to bring what was accepted to next, and for how long memory that
	// a killed process had next's storage write into is not used; 30 s.
	Timeout time.Duration

	// Policy says which blocks go first when space is needed: "lru", the default, those
	// not used for the longest time; with "aged" each use keeps a block 150 s longer, at
	// most five times, so that the prompt which everybody has outlives somebody's chat.
	Policy string

	// Checksums: with kv.ChecksumsOff what is loaded from memory is not checked, unless
	// others share it.
	Checksums kv.Checksums
}

const fewestBlocks = 4

// complete fills defaults in and says what is wrong.
func (o *Options) complete(l kv.Layout) error {
	if o.CapacityBytes == 0 {
		o.CapacityBytes = 1 << 30
	}
	if o.Streams == 0 {
		o.Streams = min(4, runtime.NumCPU())
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
	case o.Streams < 0 || o.WaitingQueueDepth < 0 || o.Timeout < 0 || o.CapacityBytes < 0:
		return fmt.Errorf("kvstore: cache: a number below 0 among capacity %d, streams %d, waiting_queue_depth %d, timeout %v",
			o.CapacityBytes, o.Streams, o.WaitingQueueDepth, o.Timeout)
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

// config is what the table needs to know.
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

// checkMemory says whether private memory is likely to be there when it is touched.
func checkMemory(sizeBytes int64) error {
	free, err := host.Host{Root: "/"}.MemoryAvailableBytes()
	if err == nil && sizeBytes > free {
		return fmt.Errorf("kvstore: cache: it takes %d bytes and this machine has %d left; make it smaller", sizeBytes, free)
	}
	return nil
}
