package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/bench/enginebench"
	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// coldNode runs the same workload over the same storage in another process.
func (c *benchEngineCmd) coldNode(ctx context.Context, chain *chain, scale int64, seed uint64) (*enginebench.Report, error) {
	binary, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	dir, err := os.MkdirTemp("", "kv3fs-bench-cold-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "report.json")
	child, err := measure.StartChild(binary, append(c.coldArguments(scale, seed, file), chain.arguments()...)...)
	if err != nil {
		return nil, fmt.Errorf("bench: the cold node: %w", err)
	}
	select {
	case <-child.Ended():
	case <-ctx.Done():
	}
	const limit = 30 * time.Second // to finish what is in progress
	if err = child.Stop(limit); err != nil {
		err = fmt.Errorf("bench: the cold node: %w", err)
	}
	text, readErr := os.ReadFile(file)
	if readErr != nil {
		return nil, errors.Join(ctx.Err(), err, readErr)
	}
	report := &enginebench.Report{}
	if e := json.Unmarshal(text, report); e != nil {
		return nil, errors.Join(err, fmt.Errorf("bench: the cold node's report: %w", e))
	}
	return report, err
}

// coldArguments gives every setting that has no default of the workload explicitly.
func (c *benchEngineCmd) coldArguments(scale int64, seed uint64, report string) []string {
	bandwidth := "none"
	if c.Bandwidth.bytesPerSecond > 0 {
		bandwidth = strconv.FormatInt(int64(c.Bandwidth.bytesPerSecond), 10) + "B/s"
	}
	number := strconv.Itoa
	args := []string{
		"bench", "engine", c.Workload, "--cold-report", report, "--seed", strconv.FormatUint(seed, 10), "--no-progress",
		"--scale", strconv.FormatInt(scale, 10), "--bandwidth", bandwidth, "--latency", c.Latency.String(),
		"--block-tokens", number(c.BlockTokens),
	}
	if c.Groups > 0 {
		args = append(args, "--groups", number(c.Groups))
	}
	if c.Queries > 0 {
		args = append(args, "--queries", number(c.Queries))
	}
	if c.Order != "" {
		args = append(args, "--order", c.Order)
	}
	if c.TimeScale > 0 {
		args = append(args, "--time-scale", strconv.FormatFloat(c.TimeScale, 'g', -1, 64))
	}
	if c.Load != "" {
		args = append(args, "--load", c.Load)
	}
	if c.MFU > 0 {
		args = append(args, "--mfu", strconv.FormatFloat(c.MFU, 'g', -1, 64))
	}
	if c.OutputTokens > 0 {
		args = append(args, "--output-tokens", number(c.OutputTokens))
	}
	if c.ChunkTokens.tokens != 0 {
		args = append(args, "--chunk-tokens", c.ChunkTokens.text())
	}
	if c.EngineMemory.bytes != 0 {
		args = append(args, "--engine-memory", c.EngineMemory.text())
	}
	if len(c.Models) > 0 {
		args = append(args, "--models", strings.Join(c.Models, ","))
	}
	if len(c.PromptTokens) > 0 {
		args = append(args, "--prompt-tokens", number(c.PromptTokens[0]))
	}
	if len(c.Concurrency) > 0 {
		args = append(args, "--concurrency", number(c.Concurrency[0]))
	}
	return args
}
