// Package storetest tests whether a chain of stores keeps every promise of
// kvstore.Store on a given file system.
//
//	func TestMyFileSystem(t *testing.T) {
//		storetest.Run(t, "Cache|Segment", storetest.Options{Dir: "/mnt/mine"})
//	}
//
// A chain with a store of a program's own is tested in the same way: see [Options.Register].
//
// It takes from seconds to a few minutes, and less with -short.
package storetest

import (
	"cmp"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/device"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
	"github.com/kv3fs/kv3fs/kvstore/internal/storesuite"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// Options say where and how a chain is tested. The zero value of a field means its
// default.
type Options struct {
	// Dir is a directory on the file system to test. Each test makes a directory of its
	// own below it and removes it. Default: the directory of t.TempDir.
	Dir string

	// Configure changes the configuration of a chain before it is opened: Pages needs the
	// URL of a page service. Namespace, Layout and directories stay as they are, and sizes
	// may only grow. Default: no change.
	Configure func(*kvstore.Config)

	// Register registers the program's own stores of the chain, before each time that the
	// chain is opened. What they keep has to be in dir, or to be told apart by it: after
	// Close a chain is opened again with the same dir, and finds its blocks.
	Register func(r *kvstore.Registry, dir string) error

	// Mount returns the mount of a 3FS that has no files yet, for each dir another one or the same once it was emptied. Chains with
	// Ds3fs need it: Ds3fs keeps its blocks at the root of a mount, where those of one test would be found by the next.
	Mount func(t testing.TB, dir string) string

	// OnDevice has most shards in memory of the store's device: the one that Configure sets,
	// or the host's. The chain must begin with Cache.
	OnDevice bool

	// Brief tests only what depends on where the memory of shards is.
	Brief bool

	// Patience is how long a call or a batch may take before it counts as hung. Default
	// 30 s.
	Patience time.Duration
}

// Run opens the chain again and again and tests each sentence of the contract in a test
// of its own, named for what holds.
func Run(t *testing.T, chain string, o Options) {
	last := chain[strings.LastIndex(chain, "|")+1:]
	if last == "Ds3fs" && o.Mount == nil {
		t.Fatal("storetest: Ds3fs has one place for all tests: set Options.Mount, or test Posix in a directory of the mount")
	}
	subject := storesuite.Subject{
		OpenStore: func(t testing.TB, dir string, so storesuite.Options) storesuite.Store {
			return open(t, chain, dir, o, so)
		},
		Dir:          o.dir,
		Durable:      last != "Empty",
		Discards:     chain == "Empty",
		OneNamespace: last == "Pages",
		Unverified:   last == "Posix" || last == "Ds3fs",
		Patience:     o.Patience,
		Brief:        o.Brief,
	}
	if o.OnDevice {
		subject = storesuite.OnDevice(subject, func(s storesuite.Store) device.Device { return s.(store).Device() })
	}
	storesuite.Run(t, subject)
}

// dir makes a directory for one test.
func (o Options) dir(t testing.TB) string {
	if o.Dir == "" {
		return t.TempDir()
	}
	dir, err := os.MkdirTemp(o.Dir, "kv3fs-storetest-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func open(t testing.TB, chain, dir string, o Options, so storesuite.Options) storesuite.Store {
	blockBytes := max(so.Layout.BlockBytes, 4096)
	c := kvstore.Config{
		Namespace: keys.Namespace{Model: so.Namespace.String(), BlockTokens: 16},
		Layout:    kvstore.Layout(so.Layout),
		Timeout:   10 * time.Second,
	}
	near := ""
	if strings.Contains(chain, "Segment|") { // which is on the host's own disk
		near, dir = filepath.Join(dir, "near"), filepath.Join(dir, "far")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for store := range strings.SplitSeq(chain, "|") {
		switch store {
		case "Cache":
			c.Cache = &kvstore.CacheOptions{CapacityBytes: int64(so.Blocks+8) * blockBytes}
		case "Posix":
			c.Posix = &kvstore.PosixOptions{Dirs: []string{dir}}
		case "Ds3fs":
			c.Ds3fs = &kvstore.Ds3fsOptions{Mount: o.Mount(t, dir)}
		case "LMCache":
			c.LMCache = &kvstore.LMCacheOptions{
				BasePaths: []string{dir}, DType: "uint8", IDs: anyID{},
				Header: &kvstore.LMCacheHeader{MemoryFormat: 4, Tensors: []kvstore.LMCacheTensor{{DType: "uint8", Shape: []int{int(so.Layout.BlockBytes)}}}},
			}
		case "Gds":
			c.Namespace.DType = "uint8"
			c.Gds = &kvstore.GdsOptions{Dirs: []string{dir}, Shape: []int64{so.Layout.BlockBytes}, MemoryFormat: 4}
		case "Segment":
			c.Segment = &kvstore.SegmentOptions{Dir: cmp.Or(near, dir), CapacityBytes: 64 << 20, SegmentBytes: 4 << 20}
		case "Pages":
			c.Pages = &kvstore.PagesOptions{File: filepath.Join(dir, "pages"), CapacityBytes: 4 * int64(so.Blocks) * (blockBytes + 8192)}
		case "RtpLlm":
			c.RtpLlm = &kvstore.RtpLlmOptions{Root: dir, Biz: "storetest", Checkpoint: "/storetest", DType: 14}
		case "Kvcm":
			c.Kvcm = &kvstore.KvcmOptions{Root: dir, Instance: "storetest", Spec: "tp0"}
		}
	}
	if o.Configure != nil {
		o.Configure(&c)
	}
	var registry kvstore.Registry
	if o.Register != nil {
		if err := o.Register(&registry, dir); err != nil {
			t.Fatal(err)
		}
	}
	s, err := registry.Open(chain, c)
	if err != nil {
		t.Fatal(err)
	}
	return store{s}
}

// anyID makes an id of any key: the suite's keys are not LMCache's.
type anyID struct{}

func (anyID) ID(key kvstore.Key) (keys.ID, bool) {
	return keys.DigestID(append(key[:], make([]byte, len(key))...))
}

func (anyID) Key(id keys.ID) kvstore.Key { return kvstore.Key(id.Bytes()[:16]) }

// store is a kvstore.Store with the types of the suite.
type store struct{ *kvstore.Store }

func (s store) Layout() kv.Layout { return kv.Layout(s.Store.Layout()) }

func (s store) Load(ctx context.Context, shards []kv.Shard) (storesuite.Task, error) {
	return begin(ctx, shards, s.Store.Load)
}

func (s store) Save(ctx context.Context, shards []kv.Shard) (storesuite.Task, error) {
	return begin(ctx, shards, s.Store.Save)
}

// begin also checks that the caller may use its slice and its places again at once.
func begin(ctx context.Context, shards []kv.Shard, do func(context.Context, []kvstore.Shard) (*kvstore.Task, error)) (storesuite.Task, error) {
	batch := make([]kvstore.Shard, len(shards))
	for i, shard := range shards {
		batch[i] = kvstore.Shard(shard)
		if shard.Device != nil {
			at := *shard.Device
			batch[i].Device = &at
		}
	}
	t, err := do(ctx, batch)
	for i := range batch {
		if at := batch[i].Device; at != nil {
			*at = device.Place{}
		}
		batch[i] = kvstore.Shard{Index: -1} // a data race if it is still read
	}
	if t == nil {
		return nil, refusal(err)
	}
	return task{t}, refusal(err)
}

func (s store) Lookup(ctx context.Context, keys []kv.Key, found []bool) error {
	return refusal(s.Store.Lookup(ctx, keys, found))
}

// refusal converts a BatchError.
func refusal(err error) error {
	var refused *kvstore.BatchError
	if errors.As(err, &refused) {
		return (*kv.BatchError)(refused)
	}
	return err
}

func (s store) Stats() kv.Stats { return statsOf(s.Store.Stats()) }

// statsOf converts what the suite looks at.
func statsOf(s kvstore.Stats) kv.Stats {
	all := kv.Stats{
		Store:    s.Store,
		LookedUp: s.LookedUp, Found: s.Found,
		LoadedShards: s.LoadedShards, LoadedBytes: s.LoadedBytes, MissedShards: s.MissedShards, FailedLoads: s.FailedLoads,
		SavedShards: s.SavedShards, SavedBytes: s.SavedBytes, FailedSaves: s.FailedSaves,
		CorruptBlocks: s.CorruptBlocks, Blocks: s.Blocks, CapacityBytes: s.CapacityBytes,
	}
	if s.Next != nil {
		next := statsOf(*s.Next)
		all.Next = &next
	}
	return all
}

// task is a kvstore.Task with the types of the suite.
type task struct{ *kvstore.Task }

func (t task) Shard(i int) kv.Shard { return kv.Shard(t.Task.Shard(i)) }
