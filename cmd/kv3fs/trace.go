package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
)

type traceCmd struct {
	Generate traceGenerateCmd `cmd:"" help:"Generate a trace of chat sessions that share prefixes, for \"kv3fs replay\"."`
}

type traceGenerateCmd struct {
	Out            string        `short:"o" default:"-" placeholder:"FILE" help:"File to write, - for standard output. Default: ${default}."`
	Requests       int           `default:"1000" range:"1..1073741824" help:"Number of requests."`
	Seed           uint64        `default:"1" range:"0.." help:"Random seed. The same seed and flags give the same trace."`
	Rate           float64       `default:"3" range:"1e-6..1e6" help:"Mean number of requests per second; \"kv3fs replay --speed 1\" keeps this rate."`
	Turns          float64       `default:"1.6" range:"1..1e6" help:"Mean number of turns in a session. Each turn sends the whole conversation again, so more turns give more hits."`
	ThinkTime      time.Duration `default:"1m" range:"0s..8760h" help:"Median pause between an answer and the next turn."`
	SystemPrompts  int           `default:"4" range:"1..65536" help:"Number of different system prompts with which sessions start."`
	QuestionTokens int           `default:"2000" range:"1..16777216" help:"Median tokens that a turn adds. One turn in a hundred adds twenty times as many."`
	AnswerTokens   int           `default:"350" range:"1..16777216" help:"Median tokens of an answer."`
	MaxInputTokens int           `default:"131072" range:"2048..16777216" help:"Tokens of the longest prompt."`
}

// Help is what "kv3fs trace generate --help" adds to the flags.
func (*traceGenerateCmd) Help() string {
	return `The trace has one request per line, in Mooncake's format:

  {"timestamp": 0, "input_length": 700, "output_length": 20, "hash_ids": [0, 1]}

timestamp is in milliseconds. hash_ids has one id for every 512 tokens of the
prompt; the last id may stand for fewer. Equal ids mean equal prompts up to there.`
}

// Run generates the trace.
func (c *traceGenerateCmd) Run(ctx context.Context, out io.Writer) (err error) {
	o := workload.GenerateOptions{
		Requests: c.Requests, Seed: c.Seed, RatePerSecond: c.Rate, TurnsPerSession: c.Turns,
		ThinkTime: c.ThinkTime, SystemPrompts: c.SystemPrompts, QuestionTokens: c.QuestionTokens,
		AnswerTokens: c.AnswerTokens, MaxInputTokens: c.MaxInputTokens,
	}
	if c.Out == "-" {
		return workload.Generate(writerUntil{ctx, out}, o)
	}
	if info, err := os.Stat(c.Out); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("trace: %s is not a regular file; for a pipe or device use --out - and redirect", c.Out)
	}
	// Write under a temporary name first: an interrupted run must not leave an incomplete
	// trace that looks complete.
	f, err := os.CreateTemp(filepath.Dir(c.Out), filepath.Base(c.Out)+".*")
	if err != nil {
		return fmt.Errorf("trace: %w", err)
	}
	defer func() {
		f.Close()
		if err != nil {
			os.Remove(f.Name())
		}
	}()
	if err := workload.Generate(writerUntil{ctx, f}, o); err != nil {
		return err
	}
	if err := f.Chmod(0o644); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	return os.Rename(f.Name(), c.Out)
}

// writerUntil is a writer that fails once ctx has ended.
type writerUntil struct {
	ctx context.Context // in the struct because Write cannot take one
	w   io.Writer
}

func (w writerUntil) Write(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return w.w.Write(p)
}
