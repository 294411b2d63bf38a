package storebench

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

// Options say what is measured. The zero value of a field means its default.
type Options struct {
	Scratch string // where the blocks are; default: the system's directory for temporary files
	Binary  string // a kv3fs, to start a daemon and what is traced; required

	// IO is the daemon's --io, and whether segments are read past the page cache:
	// buffered, or direct, the default.
	IO string

	Blocks      int   // in a load; default 128
	BlockBytes  int64 // default 2 MiB
	ShardBytes  int64 // default that of a block
	Depth       int   // requests in flight on rings; default 32
	Keys        int   // in a lookup; default 512
	IndexBlocks int   // in the stores that are asked; default 16384

	Runs    int           // of each contender; default 5
	RunTime time.Duration // of each run; default 1 s

	Done func(runs, of int) // called after every run
}

func (o *Options) fillDefaults() error {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	set(&o.Blocks, 128)
	set(&o.Depth, 32)
	set(&o.Keys, 512)
	set(&o.IndexBlocks, 16384)
	set(&o.Runs, 5)
	if o.BlockBytes == 0 {
		o.BlockBytes = 2 << 20
	}
	if o.ShardBytes == 0 {
		o.ShardBytes = o.BlockBytes
	}
	if o.RunTime == 0 {
		o.RunTime = time.Second
	}
	if o.IO == "" {
		o.IO = "direct"
	}
	if o.Done == nil {
		o.Done = func(int, int) {}
	}
	switch {
	case o.Binary == "":
		return errors.New("bench: no kv3fs to start a daemon from")
	case !slices.Contains([]string{"buffered", "direct"}, o.IO):
		return fmt.Errorf("bench: I/O mode %q is unknown: use buffered or direct", o.IO)
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
	case o.Runs < 1 || o.RunTime < time.Millisecond:
		return fmt.Errorf("bench: %d runs of %v; choose at least one of a millisecond", o.Runs, o.RunTime)
	}
	if err := o.layout().Check(); err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return nil
}

const (
	mostBytes       = 1 << 40 // of a load
	mostIndexBlocks = 1 << 20 // which take 8 GiB
)

// alignment is what direct I/O wants, and stores of small blocks have.
const alignment = 4096

func (o *Options) layout() kvstore.Layout {
	return kvstore.Layout{BlockBytes: o.BlockBytes, ShardBytes: o.ShardBytes}
}

// loadBytes is how much one load brings.
func (o *Options) loadBytes() int64 { return int64(o.Blocks) * o.BlockBytes }

func (o *Options) direct() bool { return o.IO == "direct" }
