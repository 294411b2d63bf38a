package storebench

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/kvstore"
)

// Options say what is measured. The zero value of a field means its default.
type Options struct {
	Scratch string // where the blocks are; default: the system's directory for temporary files
	Binary  string // kv3fs, to start a daemon and the traced process; required

	// IO is the daemon's --io: buffered, direct or auto, the default. Except with buffered,
	// segments bypass the page cache, and files leave it before they are loaded.
	IO string

	Blocks      int   // in a load; default 128
	BlockBytes  int64 // default 2 MiB
	ShardBytes  int64 // default that of a block
	Depth       int   // requests in flight on rings; default 32
	Keys        int   // in a lookup; default 512
	IndexBlocks int   // in the stores that lookups query; default 16384

	Runs    int           // of each contender; default 5
	RunTime time.Duration // of each run; default 1 s

	Done func(runs, of int) // called after every run
}

// Check reports options that cannot be run with.
func (o Options) Check() error { return o.fillDefaults() }

func (o *Options) fillDefaults() error {
	o.Blocks = cmp.Or(o.Blocks, 128)
	o.Depth = cmp.Or(o.Depth, 32)
	o.Keys = cmp.Or(o.Keys, 512)
	o.IndexBlocks = cmp.Or(o.IndexBlocks, 16384)
	o.Runs = cmp.Or(o.Runs, 5)
	o.BlockBytes = cmp.Or(o.BlockBytes, 2<<20)
	o.ShardBytes = cmp.Or(o.ShardBytes, o.BlockBytes)
	o.RunTime = cmp.Or(o.RunTime, time.Second)
	o.IO = cmp.Or(o.IO, "auto")
	switch {
	case o.Binary == "":
		return errors.New("bench: no kv3fs to start a daemon from")
	case !slices.Contains([]string{"auto", "buffered", "direct"}, o.IO):
		return fmt.Errorf("bench: I/O mode %q is unknown: use auto, buffered or direct", o.IO)
	case o.Blocks < 4 || o.Blocks > 1<<16:
		return fmt.Errorf("bench: loads of %d blocks; choose 4 to 65536", o.Blocks)
	case o.ShardBytes%alignment != 0:
		return fmt.Errorf("bench: shards of %d bytes; choose a multiple of %d", o.ShardBytes, alignment)
	case o.BlockBytes > mostBytes/int64(o.Blocks):
		return fmt.Errorf("bench: loads of %d blocks of %d bytes; choose less than a TiB in all", o.Blocks, o.BlockBytes)
	case o.Depth < 1 || o.Depth > 4096:
		return fmt.Errorf("bench: a depth of %d; choose 1 to 4096", o.Depth)
	case o.Keys < 1 || o.IndexBlocks < o.Keys:
		return fmt.Errorf("bench: lookups of %d keys among %d blocks; choose at least one key, and as many blocks", o.Keys, o.IndexBlocks)
	case o.IndexBlocks > mostIndexBlocks:
		return fmt.Errorf("bench: lookups among %d blocks; choose at most %d", o.IndexBlocks, mostIndexBlocks)
	}
	if err := o.layout().Check(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return o.rounds().Check()
}

const (
	mostBytes       = 1 << 40 // of a load
	mostIndexBlocks = 1 << 20 // which take 8 GiB
)

// alignment is what direct I/O requires. Stores of small blocks have it, too.
const alignment = 4096

func (o *Options) layout() kvstore.Layout {
	return kvstore.Layout{BlockBytes: o.BlockBytes, ShardBytes: o.ShardBytes}
}

// loadBytes returns the size of one load.
func (o *Options) loadBytes() int64 { return int64(o.Blocks) * o.BlockBytes }

func (o *Options) direct() bool { return o.IO != "buffered" }

func (o *Options) rounds() measure.Rounds { return measure.Rounds{Runs: o.Runs, RunTime: o.RunTime} }
