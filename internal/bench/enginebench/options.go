package enginebench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/prefill"
	"github.com/kv3fs/kv3fs/internal/spelling"
	"github.com/kv3fs/kv3fs/kvstore"
	"github.com/kv3fs/kv3fs/kvstore/keys"
)

// Workloads.
const (
	UCMTable     = "ucm-table"
	RandomTwice  = "random-twice"
	SharedPrefix = "shared-prefix"
	Trace        = "trace"
)

// Workloads returns the names of the workloads.
func Workloads() []string { return []string{UCMTable, RandomTwice, SharedPrefix, Trace} }

// Want says what a store is opened for.
type Want struct {
	Layout      kvstore.Layout
	Namespace   keys.Namespace
	StoredBytes int64          // about as many will be saved
	Speed       *kvstore.Speed // of the simulated storage; nil: the storage's own
}

// Ways to load.
const (
	LoadLayers = "layers" // the first layer of all blocks, then the second; compute each when it is there
	LoadWhole  = "whole"  // all of it, then compute
)

// Orders of the queries of shared-prefix.
const (
	Shuffled   = "shuffled"
	Grouped    = "grouped"     // all queries of a group, then those of the next
	RoundRobin = "round-robin" // a query of each group, then another of each
)

// Orders returns the names of the orders.
func Orders() []string { return []string{Shuffled, Grouped, RoundRobin} }

// Special values of options.
const (
	NoChunks         = -1
	NoEngineMemory   = -1
	AutoEngineMemory = -2 // what vLLM leaves for KV beside the weights
)

// vllmChunkTokens is vLLM's default of --max-num-batched-tokens for a server on GPUs with
// 70 GiB of memory or more.
const vllmChunkTokens = 8192

// Options say what is measured. The zero value of a field means its default.
type Options struct {
	Workload string

	// Open opens a store. Flushed blocks exist when the next store of the same namespace
	// is opened.
	Open func(context.Context, Want) (*kvstore.Store, error)

	// For the report: the chain, and where its bytes are.
	Store, Storage string
	FreeBytes      int64 // free space of the storage; 0: not known
	StartedDaemon  bool

	// ColdNode measures the second half of shared-prefix in another process, which has
	// nothing in memory, over the same storage. The store of this process is closed
	// then. It gets the scale and the seed of this one. nil skips that half. IsColdNode is
	// set in the other process.
	ColdNode   func(ctx context.Context, scale int64, seed uint64) (*Report, error)
	IsColdNode bool
	// Node is the number of a cold node; each has queries of its own. Default 1.
	Node uint64

	// Models are names that package model knows, each with its GPUs if they are not the
	// usual ones: QwQ-32B, Llama-3.1-70B@4xH100. Default: those of the workload.
	Models      []string
	BlockTokens int    // default 128
	Load        string // layers or whole; default: of the workload

	// MFU is the share of the GPUs' peak that prefill reaches. Default: as measured, where
	// there are measurements, otherwise prefill.DefaultMFU.
	MFU float64
	// OutputTokens are generated for each prompt. Default: of the workload.
	OutputTokens int
	// ChunkTokens is how many tokens a forward pass computes, NoChunks for whole prompts,
	// one after the other. Default: of the workload.
	ChunkTokens int
	// EngineMemory is the size, in bytes, of the engine's own prefix cache in GPU memory,
	// or NoEngineMemory or AutoEngineMemory. Default: of the workload.
	EngineMemory int64

	// Scale is how many times smaller blocks are than real ones. Default: the
	// smallest at which this machine can move them and the storage has space for them.
	Scale int64
	// Bandwidth, in bytes per second at full size, and Latency are those of a simulated
	// store. Default: as fast as the real one.
	Bandwidth float64
	Latency   time.Duration
	// TimeScale is how many times faster than the wall clock the engine's time runs: the
	// time of its computing and of the simulated store. Default: 8 for shared-prefix, which
	// takes ten minutes of an engine, otherwise 1.
	TimeScale float64
	// Seed decides the prompts and their order: equal options and seeds make equal
	// prompts, which a store that still has them finds. Default: random.
	Seed uint64

	PromptTokens []int  // ucm-table: default 4000, 8000, 16000, 32000; others have one, default 16000 and 20000
	Concurrency  []int  // ucm-table: default 1, 2, 4, 8; others have one, default 12 and 8
	HitPercent   int    // ucm-table: default 80
	Runs         int    // ucm-table: of each row; default 3
	Prompts      int    // random-twice: default 12
	Groups       int    // shared-prefix: default 100
	Queries      int    // shared-prefix: of each group, default 20
	Order        string // shared-prefix: of the queries; default shuffled
	NoCold       bool   // shared-prefix: without the cold node
	TraceOutput  bool   // trace: generate as many tokens as it says, instead of OutputTokens

	TracePath   string
	MaxRequests int     // of the trace; 0: all
	Speed       float64 // as a multiple of the trace's own pace; 0: as fast as possible

	// Notice receives lines for the user. Done is called after every request or run.
	Notice func(line string)
	Done   func(done, of int)
}

// Check returns an error that says what is wrong with the options, except Open.
func (o Options) Check() error {
	if o.Open == nil {
		o.Open = func(context.Context, Want) (*kvstore.Store, error) { return nil, nil }
	}
	if err := o.fillDefaults(); err != nil {
		return err
	}
	profiles, err := o.profiles()
	if err != nil {
		return err
	}
	for _, p := range profiles {
		s, err := newSubject(p, o.BlockTokens, max(o.Scale, 1), o.Load)
		if err == nil {
			err = s.checkMemory(o.EngineMemory)
		}
		if err != nil {
			return err
		}
	}
	if o.Workload == Trace {
		_, err = (&bench{o: o}).survey()
	}
	return err
}

func (o *Options) fillDefaults() error {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	if !slices.Contains(Workloads(), o.Workload) {
		return unknown("workload", o.Workload, Workloads())
	}
	if err := o.ofOtherWorkloads(); err != nil {
		return err
	}
	o.workloadDefaults()
	if !slices.Contains([]string{LoadLayers, LoadWhole}, o.Load) {
		return unknown("--load", o.Load, []string{LoadLayers, LoadWhole})
	}
	if !slices.Contains(Orders(), o.Order) {
		return unknown("--order", o.Order, Orders())
	}
	set(&o.BlockTokens, 128)
	set(&o.HitPercent, 80)
	set(&o.Runs, 3)
	set(&o.Groups, 100)
	set(&o.Queries, 20)
	for o.Seed == 0 {
		o.Seed = uint64(rand.Uint32()) // short enough to be typed
	}
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	return o.check()
}

// ofOtherWorkloads returns an error if an option is set that the workload would ignore.
func (o *Options) ofOtherWorkloads() error {
	for _, option := range []struct {
		flag string
		set  bool
		of   []string
	}{
		{"--prompt-tokens", len(o.PromptTokens) > 0, []string{UCMTable, RandomTwice, SharedPrefix}},
		{"--hit-percent", o.HitPercent != 0, []string{UCMTable}},
		{"--runs", o.Runs != 0, []string{UCMTable}},
		{"--prompts", o.Prompts != 0, []string{RandomTwice}},
		{"--groups", o.Groups != 0, []string{SharedPrefix}},
		{"--queries", o.Queries != 0, []string{SharedPrefix}},
		{"--order", o.Order != "", []string{SharedPrefix}},
		{"--no-cold", o.NoCold, []string{SharedPrefix}},
		{"--max-requests", o.MaxRequests != 0, []string{Trace}},
		{"--speed", o.Speed != 0, []string{Trace}},
		{"--trace-output", o.TraceOutput, []string{Trace}},
	} {
		if option.set && !slices.Contains(option.of, o.Workload) {
			return fmt.Errorf("bench: %s does nothing for %s: it is for %s; leave it out", option.flag, o.Workload, strings.Join(option.of, ", "))
		}
	}
	return nil
}

// workloadDefaults fills in what depends on the workload.
func (o *Options) workloadDefaults() {
	o.Prompts = cmp.Or(o.Prompts, 12)
	d := Options{ // of a trace
		Models: []string{"QwQ-32B"}, PromptTokens: []int{20_000}, Concurrency: []int{8}, Load: LoadLayers, Order: Shuffled,
		OutputTokens: 1, ChunkTokens: NoChunks, EngineMemory: NoEngineMemory, TimeScale: 1,
	}
	switch o.Workload {
	case UCMTable:
		d.Models, d.PromptTokens, d.Concurrency = []string{"QwQ-32B", "DeepSeek-R1"}, []int{4000, 8000, 16_000, 32_000}, []int{1, 2, 4, 8}
	case RandomTwice:
		d.Models, d.PromptTokens, d.Concurrency = []string{randomTwiceModel}, []int{16_000}, []int{o.Prompts}
		d.OutputTokens, d.ChunkTokens = 2, vllmChunkTokens
	case SharedPrefix:
		d.Models, d.Load, d.TimeScale = []string{sharedPrefixModel}, LoadWhole, 8
		d.OutputTokens, d.ChunkTokens, d.EngineMemory = 64, vllmChunkTokens, AutoEngineMemory
	}
	if len(o.Models) == 0 {
		o.Models = d.Models
	}
	if len(o.PromptTokens) == 0 {
		o.PromptTokens = d.PromptTokens
	}
	if len(o.Concurrency) == 0 {
		o.Concurrency = d.Concurrency
	}
	o.Load, o.Order = cmp.Or(o.Load, d.Load), cmp.Or(o.Order, d.Order)
	o.OutputTokens, o.ChunkTokens = cmp.Or(o.OutputTokens, d.OutputTokens), cmp.Or(o.ChunkTokens, d.ChunkTokens)
	o.EngineMemory, o.TimeScale = cmp.Or(o.EngineMemory, d.EngineMemory), cmp.Or(o.TimeScale, d.TimeScale)
}

func (o *Options) check() error {
	switch {
	case o.Open == nil:
		return errors.New("bench: no store to open")
	case o.Workload == Trace && o.TracePath == "":
		return errors.New("bench: the workload trace needs a file: trace FILE; \"kv3fs trace generate --out FILE\" makes one")
	case o.Workload != Trace && o.TracePath != "":
		return fmt.Errorf("bench: %s takes no file; trace FILE does", o.Workload)
	case o.BlockTokens < 1 || o.BlockTokens > 1<<16:
		return fmt.Errorf("bench: blocks of %d tokens; choose 1 to %d", o.BlockTokens, 1<<16)
	case o.HitPercent < 1 || o.HitPercent > 99:
		return fmt.Errorf("bench: a hit of %d percent; choose 1 to 99", o.HitPercent)
	case o.MFU != 0 && !(o.MFU > 0 && o.MFU <= 1):
		return fmt.Errorf("bench: an MFU of %v; choose a share above 0, at most 1", o.MFU)
	case o.OutputTokens < 1 || o.OutputTokens > 1<<20:
		return fmt.Errorf("bench: %d output tokens; choose 1 to %d", o.OutputTokens, 1<<20)
	case o.ChunkTokens != NoChunks && (o.ChunkTokens <= slices.Max(o.Concurrency) || o.ChunkTokens > 1<<22):
		return fmt.Errorf("bench: forward passes of %d tokens; choose more than the %d requests at once, which may all decode, to %d, or none", o.ChunkTokens, slices.Max(o.Concurrency), 1<<22)
	case o.EngineMemory < AutoEngineMemory:
		return errors.New("bench: the engine's memory must not be negative")
	case o.Runs < 1 || o.Prompts < 1 || o.Groups < 1 || o.Queries < 1:
		return errors.New("bench: runs, prompts, groups and queries must be at least 1")
	case o.Scale < 0 || o.Scale > 1<<20:
		return fmt.Errorf("bench: a scale of 1/%d; choose 1 to %d", o.Scale, 1<<20)
	case !(o.TimeScale >= 1 && o.TimeScale <= 1e6):
		return fmt.Errorf("bench: a time scale of %v; choose 1 to a million", o.TimeScale)
	case !(o.Bandwidth >= 0) || o.Latency < 0:
		return errors.New("bench: a simulated store's bandwidth and latency must not be negative")
	case !(o.Speed >= 0 && o.Speed <= 1e6):
		return fmt.Errorf("bench: a speed of %v; choose 1 for the trace's own, 10 for ten times that, 0 for as fast as possible", o.Speed)
	case o.MaxRequests < 0:
		return fmt.Errorf("bench: at most %d requests; choose 1 or more", o.MaxRequests)
	}
	if o.Workload != UCMTable && max(len(o.PromptTokens), len(o.Concurrency)) > 1 {
		return fmt.Errorf("bench: %s takes one length of prompts and one number at once, not several", o.Workload)
	}
	for _, n := range o.PromptTokens {
		if n < 2*o.BlockTokens || n > 1<<22 {
			return fmt.Errorf("bench: prompts of %d tokens; choose %d, which is two blocks, to %d", n, 2*o.BlockTokens, 1<<22)
		}
	}
	for _, n := range o.Concurrency {
		if n < 1 || n > 1024 {
			return fmt.Errorf("bench: %d requests at once; choose 1 to 1024", n)
		}
	}
	return nil
}

// profiles returns the profiles of the models.
func (o *Options) profiles() (all []*prefill.Profile, err error) {
	for _, text := range o.Models {
		p, err := parseSubject(text, o.MFU)
		if err != nil {
			return nil, err
		}
		all = append(all, p)
	}
	if o.Workload != UCMTable && len(all) > 1 {
		return nil, fmt.Errorf("bench: %s takes one model, not %d", o.Workload, len(all))
	}
	return all, nil
}

func unknown(what, name string, known []string) error {
	if near := spelling.Nearest(name, known, 1); len(near) > 0 {
		return fmt.Errorf("bench: %s %.40q is unknown; did you mean %s?", what, name, near[0])
	}
	return fmt.Errorf("bench: %s %.40q is unknown; known: %s", what, name, strings.Join(known, ", "))
}
