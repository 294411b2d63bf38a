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
	Scratch string `placeholder:"DIR" help:"Where the blocks are kept while it runs: a directory on the disk to measure, or /dev/shm to leave the disk out. Default: the system's directory for temporary files."`
	IO      string `name:"io" default:"direct" enum:"buffered,direct" help:"direct has daemon and segments read past the page cache; with buffered it is the page cache that is measured."`

	Blocks      int           `default:"128" help:"Blocks in a load. Default: ${default}."`
	BlockBytes  byteSize      `default:"2MiB" placeholder:"SIZE" help:"Size of a block. Default: ${default}."`
	ShardBytes  byteSize      `placeholder:"SIZE" help:"Size of its shards, a multiple of 4KiB. Default: that of a block."`
	Depth       int           `default:"32" help:"Requests in flight on a ring."`
	Keys        int           `default:"512" help:"Keys in a lookup."`
	IndexBlocks int           `default:"16384" help:"Blocks in the stores that lookups are measured on."`
	Runs        int           `default:"5" help:"Runs of each contender; the median counts."`
	RunTime     time.Duration `default:"1s" help:"Length of a run."`
	JSON        bool          `name:"json" help:"Print the report as JSON instead of a table."`
	NoProgress  bool          `help:"No progress bar, even on a terminal."`

	TracedHits string `hidden:"" placeholder:"DIR" help:"What the bench itself runs below strace."`
}

// Help is what "kv3fs bench store --help" adds to the flags.
func (*benchStoreCmd) Help() string {
	return `For example:

  kv3fs bench store --scratch /mnt/disk                    # what a disk gives
  kv3fs bench store --scratch /dev/shm --io buffered       # what the stores cost

A daemon is started for the bench. The contenders of a case take turns, run by run,
on the same blocks and into the same buffers. Cache|Ds3fs is compared with a plain ring
on the same files, with all files open and with none, and with opening, reading and
closing a file for each block, as UCM does. The warm cache is compared with a copy of
memory. All of it runs with and without checksums.
One block of every run is checked. It takes as much of /dev/shm as two loads and some.

The system calls of a hit in segments are counted by strace, if it is installed.`
}

// Run measures.
func (c *benchStoreCmd) Run(ctx context.Context, out io.Writer) error {
	if c.TracedHits != "" {
		return storebench.TracedHits(ctx, c.TracedHits, out)
	}
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	bar := newBenchBar(c.NoProgress)
	report, err := storebench.Run(ctx, storebench.Options{
		Scratch: c.Scratch, Binary: binary, IO: c.IO,
		Blocks: c.Blocks, BlockBytes: int64(c.BlockBytes), ShardBytes: int64(c.ShardBytes), Depth: c.Depth,
		Keys: c.Keys, IndexBlocks: c.IndexBlocks, Runs: c.Runs, RunTime: c.RunTime,
		Done: bar.done,
	})
	bar.clear()
	return printMeasured(out, report, err, c.JSON)
}
