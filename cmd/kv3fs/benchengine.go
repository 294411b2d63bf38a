package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/enginebench"
	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

type benchEngineCmd struct {
	Workload string `arg:"" help:"ucm-table, random-twice, shared-prefix or trace."`
	File     string `arg:"" optional:"" help:"The trace to replay, in Mooncake's format."`

	benchChain `embed:""`

	Models      []string       `placeholder:"NAME" help:"Models, as named on Hugging Face, each optionally with its GPUs after an @: Llama-3.1-70B@4xH100. Default: QwQ-32B, and for ucm-table also DeepSeek-R1, on the GPUs with which UCM measured."`
	BlockTokens int            `default:"128" placeholder:"N" range:"1..65536" help:"Tokens per block. Default: ${default}."`
	Load        string         `default:"" enum:",layers,whole" placeholder:"HOW" help:"layers: compute each layer as soon as its part of every block is loaded, as UCM does. whole: load a block with all its layers at once and compute when everything is loaded, as vLLM's 3FS connector does. Default: layers, and whole for shared-prefix."`
	Scale       int64          `placeholder:"N" range:"1..1048576" help:"Make blocks, and the simulated bandwidth, N times smaller than they really are. Default: small enough for this machine's speed and the storage's free space."`
	Bandwidth   simulatedSpeed `default:"3fs" placeholder:"RATE" help:"Bandwidth of a simulated store, which limits how fast shards are loaded: 40GiB/s, 200Gbit/s, or a name: 3fs (40GiB/s), 100gbe, nvme4 ... none: no limit. Default: ${default}."`
	Latency     time.Duration  `default:"1ms" range:"0s..1h" help:"Latency of the simulated store, for each shard. Default: ${default}."`
	TimeScale   float64        `placeholder:"N" range:"1..1e6" help:"Run the simulated engine and store N times faster. The real time that this machine takes then counts N times. Default: 1, and 8 for shared-prefix."`
	Seed        uint64         `placeholder:"N" range:"1.." help:"Decides the prompts. With the same seed and options, they are the same; a store that still has them finds them. Default: a random one, which the report shows."`

	MFU          float64      `name:"mfu" placeholder:"X" range:"0.001..1" help:"Share of the GPUs' peak TFLOPS that prefill reaches. Default: as measured for QwQ-32B on 2xH100 and DeepSeek-R1 on 8xH100, otherwise 0.5."`
	OutputTokens int          `placeholder:"N" range:"1..1048576" help:"Tokens to generate for each prompt; the first comes from the prefill, the others from decode passes. Default: 1; random-twice 2, shared-prefix 64."`
	ChunkTokens  chunkTokens  `placeholder:"N" help:"Chunked prefill: tokens of a forward pass, vLLM's --max-num-batched-tokens. none: a pass computes a whole prompt. Default: none; random-twice and shared-prefix 8192."`
	EngineMemory engineMemory `placeholder:"SIZE" help:"The engine's own prefix cache in GPU memory, at full size: 20GiB, none, or auto: nine tenths of the GPUs' memory, less the weights. Default: none, and auto for shared-prefix."`

	PromptTokens []int   `placeholder:"N" range:"2..4194304" help:"Prompt lengths. Default: ucm-table 4000,8000,16000,32000; random-twice 16000; shared-prefix 20000, without the query."`
	Concurrency  []int   `placeholder:"N" range:"1..1024" help:"Concurrent requests. Default: ucm-table 1,2,4,8; random-twice all; others 8."`
	HitPercent   int     `placeholder:"N" range:"1..99" help:"ucm-table: percentage of each prompt that is in the store. Default: 80."`
	Runs         int     `placeholder:"N" range:"1..1000" help:"ucm-table: runs of each row; the report shows the median. Default: 3."`
	Prompts      int     `placeholder:"N" range:"1..1048576" help:"random-twice: number of prompts. Default: 12."`
	Groups       int     `placeholder:"N" range:"1..1048576" help:"shared-prefix: number of groups; the queries of a group share a prefix. Default: 100."`
	Queries      int     `placeholder:"N" range:"1..1048576" help:"shared-prefix: queries per group. Default: 20."`
	Order        string  `default:"" enum:",shuffled,grouped,round-robin" placeholder:"HOW" help:"shared-prefix: order of the queries: shuffled, grouped (all of a group, then the next) or round-robin. Default: shuffled."`
	NoCold       bool    `help:"shared-prefix: leave out the cold node, a second process that starts with nothing in memory."`
	MaxRequests  int     `placeholder:"N" range:"1.." help:"trace: stop after this many requests. Default: all."`
	TraceOutput  bool    `help:"trace: generate as many tokens as the trace says, instead of --output-tokens."`
	Speed        float64 `default:"0" range:"0..1e6" help:"trace: replay speed. 1 keeps the trace's timing, 10 is ten times faster, 0 is as fast as --concurrency allows."`

	JSON       bool   `name:"json" help:"Print the report as JSON instead of a table."`
	HTML       string `name:"html" placeholder:"FILE" help:"Also write the report as an HTML page with plots."`
	NoProgress bool   `help:"Show no progress bar, even on a terminal."`

	// Arguments for a cold node, from the process that starts it.
	ColdReport string `hidden:""`
	// Node is the number of that cold node.
	Node uint64 `hidden:"" range:"0.."`
	// HandOver is where the report goes of a host that is not cold.
	HandOver string `hidden:""`
}

// Help is what "kv3fs bench engine --help" adds to the flags.
func (*benchEngineCmd) Help() string {
	return `For example:

  kv3fs bench engine ucm-table --scratch /dev/shm --html report.html
  kv3fs bench engine ucm-table --store "Cache|Posix" --dir /mnt/disk/kv --bandwidth none
  kv3fs bench engine random-twice --seed 123456 --mfu 0.27
  kv3fs bench engine trace trace.jsonl --mount /mnt/3fs --max-requests 500

The engine is simulated and needs no GPU: prompts are really hashed, looked up, loaded
and saved, and computing takes the time that GPUs would take. The report compares the
time to the first token with that of computing everything, and with the ideal.

  ucm-table      UCM's table: 4K to 32K tokens, 1 to 8 requests at once, 80 % hits
  random-twice   UCM's vllm bench: 12 prompts of 16,000 tokens, then the same again
  shared-prefix  vLLM's long-context run: 100 groups of 20 queries with a prefix of
                 20,000 tokens, without a store, with one, and on a cold node, a second
                 process that starts with nothing in memory
  trace FILE     a trace in Mooncake's format ("kv3fs trace generate" makes one);
                 a second replay with the same --scale over the same --dir or --mount
                 hits the blocks that the first one saved

Every loaded block is checked: the exit status is 1 if a byte was wrong, if a
block that was found could not be loaded, or if one could not be saved.`
}

// Run runs the benchmark.
func (c *benchEngineCmd) Run(ctx context.Context, out io.Writer, values *flagValues) (err error) {
	bar := newBenchBar(c.NoProgress)
	o := c.options()
	o.Notice, o.Done = bar.notice, bar.done
	if err := o.Check(); err != nil { // before starting anything
		return mistake{err}
	}
	chain, err := newChain(c.benchChain, bar.notice)
	if err != nil {
		return mistake{err}
	}
	page, err := newPage(c.HTML)
	if err != nil {
		return err
	}
	defer page.abandon()
	if err := chain.start(ctx); err != nil {
		return printMeasured[enginebench.Report](ctx, out, values, "bench engine", nil, err, c.JSON)
	}
	o.Store = chain.name
	o.Open, o.Storage, o.FreeBytes, o.StartedDaemon = chain.open, chain.place(), chain.freeBytes(), chain.daemon != nil
	if c.ColdReport == "" {
		o.ColdNode = func(ctx context.Context, scale int64, seed uint64) (*enginebench.Report, error) {
			bar.notice("starting the cold node as a separate process")
			return c.coldNode(ctx, chain, scale, seed)
		}
	}
	report, err := enginebench.Run(ctx, o)
	bar.clear()
	err = errors.Join(err, chain.stop())
	if err != nil && report != nil && len(report.Rows) == 0 && ctx.Err() == nil {
		return err // there is nothing to report
	}
	if to := cmp.Or(c.ColdReport, c.HandOver); to != "" {
		return errors.Join(err, handOver(report, to))
	}
	err = printMeasured(ctx, out, values, "bench engine", report, err, c.JSON)
	if report != nil {
		err = errors.Join(err, page.write(report, values.circumstances()))
	}
	return err
}

func (c *benchEngineCmd) options() enginebench.Options {
	o := enginebench.Options{
		Workload: c.Workload, TracePath: c.File,
		Models: c.Models, BlockTokens: c.BlockTokens, Load: c.Load, Scale: c.Scale,
		Bandwidth: c.Bandwidth.bytesPerSecond, Latency: c.Latency, TimeScale: c.TimeScale,
		PromptTokens: c.PromptTokens, Concurrency: c.Concurrency, HitPercent: c.HitPercent, Runs: c.Runs,
		Prompts: c.Prompts, Groups: c.Groups, Queries: c.Queries, MaxRequests: c.MaxRequests, Speed: c.Speed,
		Order: c.Order, NoCold: c.NoCold, TraceOutput: c.TraceOutput,
		MFU: c.MFU, OutputTokens: c.OutputTokens, ChunkTokens: c.ChunkTokens.tokens, EngineMemory: c.EngineMemory.bytes, IsColdNode: c.ColdReport != "", Node: c.Node, Seed: c.Seed,
	}
	if o.Bandwidth == 0 { // nothing is simulated
		o.Latency = 0
	}
	return o
}

// handOver writes the report of a host for the process that started it.
func handOver(report *enginebench.Report, to string) error {
	if report == nil {
		return nil
	}
	f, err := os.Create(to)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return errors.Join(json.NewEncoder(f).Encode(report), f.Close())
}

// simulatedSpeed is a bandwidth, or none.
type simulatedSpeed struct{ bytesPerSecond float64 }

// UnmarshalText parses a bandwidth or "none".
func (s *simulatedSpeed) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*s = simulatedSpeed{}
		return nil
	}
	var b bandwidth
	if err := b.UnmarshalText(text); err != nil {
		return fmt.Errorf("%w; or none", err)
	}
	*s = simulatedSpeed{b.BytesPerSecond}
	return nil
}

// chunkTokens is a number of tokens or none.
type chunkTokens struct{ tokens int }

// UnmarshalText parses the number.
func (c *chunkTokens) UnmarshalText(text []byte) error {
	if string(text) == "none" {
		*c = chunkTokens{enginebench.NoChunks}
		return nil
	}
	n, err := strconv.ParseUint(string(text), 10, 31)
	if err != nil || n == 0 {
		return fmt.Errorf("%.40q is not a number of tokens above 0, nor none", text)
	}
	*c = chunkTokens{int(n)}
	return nil
}

// text is what UnmarshalText understands.
func (c chunkTokens) text() string {
	if c.tokens == enginebench.NoChunks {
		return "none"
	}
	return strconv.Itoa(c.tokens)
}

// engineMemory is a size in bytes, none or auto.
type engineMemory struct{ bytes int64 }

// UnmarshalText parses the size.
func (m *engineMemory) UnmarshalText(text []byte) error {
	switch string(text) {
	case "none":
		*m = engineMemory{enginebench.NoEngineMemory}
		return nil
	case "auto":
		*m = engineMemory{enginebench.AutoEngineMemory}
		return nil
	}
	var size byteSize
	if err := size.UnmarshalText(text); err != nil {
		return fmt.Errorf("%w; or none, or auto", err)
	}
	*m = engineMemory{cmp.Or(int64(size), enginebench.NoEngineMemory)}
	return nil
}

// text is what UnmarshalText understands.
func (m engineMemory) text() string {
	switch m.bytes {
	case enginebench.NoEngineMemory:
		return "none"
	case enginebench.AutoEngineMemory:
		return "auto"
	}
	return fmt.Sprintf("%dB", m.bytes)
}

// page is an HTML file that appears under its name when it is complete. The zero value
// writes no file.
type page struct {
	path string
	temp *os.File
}

// newPage creates a temporary file for the page, so that the benchmark fails before it
// runs if the page cannot be written.
func newPage(path string) (*page, error) {
	if path == "" {
		return &page{}, nil
	}
	if at, err := os.Stat(path); err == nil && at.IsDir() {
		return nil, fmt.Errorf("bench: --html: %s is a directory; name a file in it", path)
	}
	temp, err := os.CreateTemp(filepath.Dir(path), ".kv3fs-bench-*.html")
	if err != nil {
		return nil, fmt.Errorf("bench: --html: %w", err)
	}
	return &page{path, temp}, nil
}

func (p *page) write(report interface {
	WriteHTML(io.Writer, measure.Circumstances) error
}, with measure.Circumstances) error {
	if p.temp == nil {
		return nil
	}
	err := errors.Join(report.WriteHTML(p.temp, with), p.temp.Chmod(0o644), p.temp.Close())
	if err == nil {
		err = os.Rename(p.temp.Name(), p.path)
	}
	if err != nil {
		return fmt.Errorf("bench: --html: %w", err)
	}
	return nil
}

// abandon removes an incomplete file.
func (p *page) abandon() {
	if p.temp != nil {
		p.temp.Close()
		os.Remove(p.temp.Name())
	}
}
