package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/ringbench"
)

type benchCmd struct {
	Ring   benchRingCmd   `cmd:"" help:"Compare a daemon's rings with its mount and with plain pread and pwrite on the data directory."`
	Pages  benchPagesCmd  `cmd:"" help:"Compare the page service with a simple one in Python."`
	Store  benchStoreCmd  `cmd:"" help:"Compare block stores with a ring on the same files and with memory copies."`
	Policy benchPolicyCmd `cmd:"" help:"Compare the hits of eviction policies on a trace of prompts, with the best possible."`
	Engine benchEngineCmd `cmd:"" help:"Measure how much a store shortens an inference engine's time to the first token, compared with the ideal."`
	Hosts  benchHostsCmd  `cmd:"" help:"Measure what a store that several hosts share brings: on the host that fills it, and on one that has just joined."`
}

type benchRingCmd struct {
	Data    string `env:"-" placeholder:"DIR" help:"Data directory of a running daemon; also give --mount. Without both, the benchmark starts and stops a daemon of its own."`
	Mount   string `env:"-" placeholder:"DIR" help:"Mount of that daemon."`
	Scratch string `placeholder:"DIR" help:"Where the benchmark's own daemon keeps its data: a directory on the disk to measure, or /dev/shm to leave the disk out. Default: the system's directory for temporary files."`
	IO      string `name:"io" default:"auto" enum:"auto,buffered,direct" help:"The daemon's --io; for a running daemon, give the value it was started with. With direct, the mount and the plain loop use O_DIRECT too."`

	Sizes      []byteSize    `default:"4KiB,128KiB,1MiB,4MiB" placeholder:"SIZE" range:"4KiB..1GiB" help:"Request sizes, multiples of 4KiB. Default: ${default}."`
	Depth      int           `placeholder:"N" range:"1..4096" help:"Requests in flight in each ring. Default: 64 for requests below 128 KiB, otherwise 32."`
	Rings      int           `default:"1" range:"1..256" help:"Number of rings, each with its own files."`
	FileBytes  byteSize      `default:"256MiB" placeholder:"SIZE" range:"4KiB..16TiB" help:"Size of each file; there are two for each ring. Default: ${default}."`
	Runs       int           `default:"5" range:"1..1000" help:"Runs of each contender; the report shows the median."`
	RunTime    time.Duration `default:"500ms" range:"1ms..1h" help:"Length of a run."`
	Checksums  bool          `help:"Compare with the rings of a second daemon, which keeps checksums (serve --checksums on)."`
	Scrape     bool          `help:"Compare with the same rings while the metrics of the benchmark's own daemon are read once a second, as by Prometheus, and it is asked for what an open dashboard asks for."`
	Restart    bool          `name:"restart-state" help:"Compare with the rings of a second daemon, which outlive it (serve --restart-state), while those of the first one do not."`
	NoFio      bool          `help:"Leave out the io_uring column even if fio is installed."`
	JSON       bool          `name:"json" help:"Print the report as JSON instead of a table."`
	NoProgress bool          `help:"Show no progress bar, even on a terminal."`
}

// Help is what "kv3fs bench ring --help" adds to the flags.
func (*benchRingCmd) Help() string {
	return `For example:

  kv3fs bench ring --scratch /dev/shm --io buffered        # the overhead of the rings
  kv3fs bench ring --scratch /mnt/disk --io direct         # the speed of a disk
  kv3fs bench ring --data /var/lib/kv3fs --mount /mnt/3fs  # a running daemon

The contenders take turns, run by run, on the same files: rings; pread and
pwrite through the mount; the same on the data directory; and fio with io_uring
on the data directory, if it is installed. For requests below 128 KiB, the mount
and the plain loop get as many threads as there are rings; for larger ones, as
many as there are requests in flight, up to 64. In every run, the last block of each
request in flight of the rings is checked, and one of the others.`
}

// Run runs the benchmark.
func (c *benchRingCmd) Run(ctx context.Context, out io.Writer, values *flagValues) error {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	bar := newBenchBar(c.NoProgress)
	o := ringbench.Options{
		Data: c.Data, Mount: c.Mount, Scratch: c.Scratch, Binary: binary, IO: c.IO,
		Depth: c.Depth, Rings: c.Rings, FileBytes: int64(c.FileBytes),
		Runs: c.Runs, RunTime: c.RunTime, NoFio: c.NoFio, Checksums: c.Checksums, Scrape: c.Scrape, Restart: c.Restart,
		Notice: bar.notice,
		Done:   bar.done,
	}
	for _, size := range c.Sizes {
		o.SizesBytes = append(o.SizesBytes, int64(size))
	}
	if err := o.Check(); err != nil {
		return mistake{err}
	}
	report, err := ringbench.Run(ctx, o)
	bar.clear()
	return printMeasured(ctx, out, values, "bench ring", report, err, c.JSON)
}
