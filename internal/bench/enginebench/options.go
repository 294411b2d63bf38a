package enginebench

import (
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
	// then. nil skips that half. IsColdNode is set in the other process.
	ColdNode   func(ctx context.Context, scale int64, salt uint64) (*Report, error)
	IsColdNode bool

	// Models are names that package model knows, each with its GPUs if they are not the
	// usual ones: QwQ-32B, Llama-3.1-70B@4xH100. Default: those of the workload.
	Models      []string
	BlockTokens int    // default 128
	Load        string // layers, the default, or whole

	// Scale is how many times smaller blocks are than real ones. Default: the
	// smallest at which this machine can move them and the storage has space for them.
	Scale int64
	// Bandwidth, in bytes per second at full size, and Latency are those of a simulated
	// store. Default: as fast as the real one.
	Bandwidth float64
	Latency   time.Duration
	// TimeScale is how many times faster than the wall clock the engine's time runs: the
	// time of its computing and of the simulated store. Default 1.
	TimeScale float64
	// Salt makes new prompts differ from those of every earlier bench. Default: random. A
	// cold node gets that of the first node.
	Salt uint64

	PromptTokens []int // ucm-table: default 4000, 8000, 16000, 32000; others have one, default 16000 and 20000
	Concurrency  []int // ucm-table: default 1, 2, 4, 8; others have one, default 12 and 8
	HitPercent   int   // ucm-table: default 80
	Runs         int   // ucm-table: of each row; default 3
	Prompts      int   // random-twice: default 12
	Groups       int   // shared-prefix: default 100
	Queries      int   // shared-prefix: of each group, default 20

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
		if _, err := newSubject(p, o.BlockTokens, max(o.Scale, 1)); err != nil {
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
	if o.Load == "" {
		o.Load = LoadLayers
	}
	if !slices.Contains([]string{LoadLayers, LoadWhole}, o.Load) {
		return unknown("--load", o.Load, []string{LoadLayers, LoadWhole})
	}
	set(&o.BlockTokens, 128)
	set(&o.HitPercent, 80)
	set(&o.Runs, 3)
	set(&o.Prompts, 12)
	set(&o.Groups, 100)
	set(&o.Queries, 20)
	if o.TimeScale == 0 {
		o.TimeScale = 1
	}
	for o.Salt == 0 {
		o.Salt = rand.Uint64()
	}
	o.workloadDefaults()
	if o.Notice == nil {
		o.Notice = func(string) {}
	}
	return o.check()
}

func (o *Options) workloadDefaults() {
	models, prompts, concurrency := []string{"QwQ-32B"}, []int{20_000}, []int{8}
	switch o.Workload {
	case UCMTable:
		models, prompts, concurrency = []string{"QwQ-32B", "DeepSeek-R1"}, []int{4000, 8000, 16_000, 32_000}, []int{1, 2, 4, 8}
	case RandomTwice:
		prompts, concurrency = []int{16_000}, []int{o.Prompts}
	}
	if len(o.Models) == 0 {
		o.Models = models
	}
	if len(o.PromptTokens) == 0 {
		o.PromptTokens = prompts
	}
	if len(o.Concurrency) == 0 {
		o.Concurrency = concurrency
	}
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
		p, err := parseSubject(text)
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
