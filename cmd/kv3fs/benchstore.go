package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/storebench"
)

type benchStoreCmd struct {
	Scratch string `placeholder:"DIR" help:"Where the benchmark keeps the blocks: a directory on the disk to measure, or /dev/shm to leave the disk out. Default: the system's directory for temporary files."`
	IO      string `name:"io" default:"auto" enum:"auto,buffered,direct" help:"The daemon's --io. Segments bypass the page cache, and files leave it before they are loaded, except with buffered."`

	Blocks      int           `default:"128" range:"4..65536" help:"Blocks per load."`
	BlockBytes  byteSize      `default:"2MiB" placeholder:"SIZE" range:"4KiB..256GiB" help:"Size of a block. Default: ${default}."`
	ShardBytes  byteSize      `placeholder:"SIZE" range:"4KiB..256GiB" help:"Size of a shard, a multiple of 4KiB. Default: the size of a block."`
	Depth       int           `default:"32" range:"1..4096" help:"Requests in flight per ring."`
	Keys        int           `default:"512" range:"1..1048576" help:"Keys per lookup."`
	IndexBlocks int           `default:"16384" range:"1..1048576" help:"Blocks in the stores when lookups are measured."`
	Runs        int           `default:"5" range:"1..1000" help:"Runs of each contender; the report shows the median."`
	RunTime     time.Duration `default:"1s" range:"1ms..1h" help:"Length of a run."`
	JSON        bool          `name:"json" help:"Print the report as JSON instead of a table."`
	NoProgress  bool          `help:"Show no progress bar, even on a terminal."`

	TracedHits string `hidden:"" placeholder:"DIR" help:"Used by the benchmark itself, to run the hits under strace."`
}

// Help is what "kv3fs bench store --help" adds to the flags.
func (*benchStoreCmd) Help() string {
	return `For example:

  kv3fs bench store --scratch /mnt/disk                    # the speed of a disk
  kv3fs bench store --scratch /dev/shm --io buffered       # the overhead of the stores

The benchmark starts its own daemon. The contenders of a case take turns, run by run,
on the same blocks and into the same buffers. Cache|Ds3fs is compared with a plain ring
on the same files, with all files open and with none. Files as UCM leaves them are opened,
read and closed one at a time, as UCM does, by as many plain threads, and by plain threads
that also open each file in the mount, for blocks of three sizes, and written that way, too, with and
without a --capacity. The warm cache is compared with a memory copy. Everything is measured with and without checksums, and the last load of every run is checked.
The benchmark takes slightly more of /dev/shm than two loads.

If strace is installed, it counts the system calls of a hit in segments.`
}

// Run runs the benchmark.
func (c *benchStoreCmd) Run(ctx context.Context, out io.Writer, values *flagValues) error {
	if c.TracedHits != "" {
		return storebench.TracedHits(ctx, c.TracedHits, out)
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	bar := newBenchBar(c.NoProgress)
	o := storebench.Options{
		Scratch: c.Scratch, Binary: binary, IO: c.IO,
		Blocks: c.Blocks, BlockBytes: int64(c.BlockBytes), ShardBytes: int64(c.ShardBytes), Depth: c.Depth,
		Keys: c.Keys, IndexBlocks: c.IndexBlocks, Runs: c.Runs, RunTime: c.RunTime,
		Done: bar.done,
	}
	if err := o.Check(); err != nil {
		return mistake{err}
	}
	report, err := storebench.Run(ctx, o)
	bar.clear()
	return printMeasured(ctx, out, values, "bench store", report, err, c.JSON)
}
