package main

import (
	"context"
	"fmt"
	"io"
	"os"

	"github.com/kv3fs/kv3fs/internal/bench/policybench"
	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

type benchPolicyCmd struct {
	Trace      []string               `required:"" sep:"none" placeholder:"FILE" help:"Trace to simulate, - for standard input: Mooncake's format, one JSON object per line with timestamp (ms) and hash_ids (one per block of the prompt, of any size; equal ids mean equal prompts up to there). \"kv3fs trace generate\" makes one."`
	Capacity   []policybench.Capacity `env:"-" default:"1%,5%,10%,20%" placeholder:"SIZE" help:"Sizes of the cache: shares of the trace's different blocks, or numbers of blocks. Default: ${default}."`
	JSON       bool                   `name:"json" help:"Print the report as JSON instead of a table."`
	NoProgress bool                   `help:"Show no progress bar, even on a terminal."`
}

// Help is what "kv3fs bench policy --help" adds to the flags.
func (*benchPolicyCmd) Help() string {
	return `For example:

  kv3fs bench policy --trace conversation_trace.jsonl
  kv3fs bench policy --trace trace.jsonl --capacity 2%,50% --json

Simulates which blocks a full cache keeps, and shows the hit ratio of blocks: of
kv3fs's policy, of LRU, FIFO, LFU and S3-FIFO, and of the best that a policy could
do that knew the whole trace. Nothing is stored. A hit is a block that the cache
holds together with all blocks before it in the prompt.`
}

// Run simulates the policies.
func (c *benchPolicyCmd) Run(ctx context.Context, out io.Writer, values *flagValues) error {
	o := policybench.Options{Capacities: c.Capacity}
	if err := o.Check(); err != nil {
		return mistake{fmt.Errorf("--capacity: %w", err)}
	}
	if len(c.Trace) > 1 {
		return mistake{fmt.Errorf("--trace is given %d times; simulate one trace at a time", len(c.Trace))}
	}
	source, name := io.ReadCloser(nil), c.Trace[0]
	if name == "-" {
		source, name = standardInput(ctx), os.Stdin.Name()
	} else {
		f, err := os.Open(name)
		if err != nil {
			return fmt.Errorf("trace: %w; \"kv3fs trace generate --out FILE\" makes one", err)
		}
		source = f
	}
	defer source.Close()
	bar := newBenchBar(c.NoProgress)
	o.Done = bar.done
	trace, err := policybench.Load(ctx, workload.NewBlockReader(source, name))
	var report *policybench.Report
	if err == nil {
		report, err = policybench.Run(ctx, trace, o)
	}
	bar.clear()
	return printMeasured(ctx, out, values, "bench policy", report, err, c.JSON)
}
