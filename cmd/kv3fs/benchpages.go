package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/pagesbench"
)

type benchPagesCmd struct {
	URL     string `env:"-" name:"url" placeholder:"URL" help:"A running page service, http://HOST:PORT or http://HOST:PORT/ns/NAME, which the benchmark fills with keys. Default: the benchmark starts and stops its own."`
	Scratch string `placeholder:"DIR" help:"Where the benchmark's own service keeps its data: a directory on the disk to measure. Default: the system's directory for temporary files."`

	Protocols   []string      `default:"vllm,sglang" enum:"vllm,sglang" help:"Protocols to measure: vllm, sglang or both."`
	Clients     int           `default:"8" range:"1..1024" help:"Number of concurrent clients, each with one connection."`
	Batch       int           `default:"512" range:"1..4096" help:"Keys per request."`
	Pages       int           `default:"1048576" range:"16..1073741824" help:"Number of the rank's pages; memory and restart are measured when every page has a key."`
	Runs        int           `default:"5" range:"1..1000" help:"Runs of each contender; the report shows the median."`
	RunTime     time.Duration `default:"2s" range:"1ms..1h" help:"Length of a run."`
	NoReference bool          `help:"Leave out the Python reference even if python3 is installed."`
	JSON        bool          `name:"json" help:"Print the report as JSON instead of a table."`
	NoProgress  bool          `help:"Show no progress bar, even on a terminal."`
}

// Help is what "kv3fs bench pages --help" adds to the flags.
func (*benchPagesCmd) Help() string {
	return `For example:

  kv3fs bench pages --scratch /mnt/disk
  kv3fs bench pages --url http://127.0.0.1:18000/ns/bench --no-reference

The service takes turns, run by run, with a simple Python program that has the
same state and single lock as the reference servers. Without python3, its column
is missing. The hits of every answer are checked, and every page of some answers.`
}

// Run runs the benchmark.
func (c *benchPagesCmd) Run(ctx context.Context, out io.Writer, values *flagValues) error {
	binary, err := os.Executable()
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	bar := newBenchBar(c.NoProgress)
	o := pagesbench.Options{
		URL: c.URL, Scratch: c.Scratch, Binary: binary,
		Protocols: c.Protocols, Clients: c.Clients, Batch: c.Batch, Pages: c.Pages, Runs: c.Runs, RunTime: c.RunTime,
		Done: bar.done,
	}
	if err := o.Check(); err != nil {
		return mistake{err}
	}
	if !c.NoReference {
		if o.Python, err = exec.LookPath("python3"); err != nil {
			bar.notice("python3 is not installed: no reference column")
		}
	}
	report, err := pagesbench.Run(ctx, o)
	bar.clear()
	return printMeasured(ctx, out, values, "bench pages", report, err, c.JSON)
}
