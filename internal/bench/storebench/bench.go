package storebench

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// Run measures and reports. An interrupted or failed run reports the cases that were
// complete, together with the error.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	d, err := measure.StartDaemon(ctx, o.Binary, o.Scratch, o.IO)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	b := &bench{o: o, daemon: d, progress: measure.NewProgress(o.Done)}
	b.progress.Expect((contenders + o.ucmContenders()) * o.Runs)
	if b.bufs, err = newBuffers(o.Blocks, o.BlockBytes); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, b.bufs.close()) }()
	b.sets = []*blocks{blocksOf(1, o.Blocks, o.layout()), blocksOf(2, o.Blocks, o.layout())}
	rep := &Report{
		Scratch: d.Data, FileSystem: measure.FileSystemName(d.Data), IO: o.IO, CPUs: runtime.NumCPU(),
		Runs: o.Runs, RunSeconds: o.RunTime.Seconds(),
		Blocks: o.Blocks, BlockBytes: o.BlockBytes, ShardBytes: o.ShardBytes, Depth: o.Depth,
		Keys: o.Keys, IndexBlocks: o.IndexBlocks,
	}
	for _, part := range []func(context.Context, *Report) error{b.cold, b.ucm, b.warm, b.segments, b.lookups, b.calls} {
		if err := part(ctx, rep); err != nil {
			if ctx.Err() != nil {
				err = ctx.Err()
			}
			return rep, fmt.Errorf("bench: %w", err)
		}
	}
	return rep, nil
}

// bench is a run.
type bench struct {
	o      Options
	daemon *measure.Daemon
	bufs   *buffers
	sets   []*blocks

	progress *measure.Progress
}

// contenders is the number of contenders in all cases except UCM's, which depend on Options.
const contenders = 5 + 3 + 2 + 2

// turns lets the contenders of a case load sets, run by run.
func (b *bench) turns(ctx context.Context, all []*contender, sets []*blocks) ([]Load, error) {
	rates := map[string][]float64{}
	err := measure.Turns(ctx, b.o.rounds(), all, func(ctx context.Context, x *contender, turn measure.Turn) error {
		gbps, err := x.sample(ctx, sets, turn.Time)
		if err == nil && turn.Counts() {
			rates[x.name] = append(rates[x.name], gbps)
			b.progress.Step()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	var out []Load
	for _, x := range all {
		out = append(out, Load{Way: x.name, GBps: measure.SpreadOf(rates[x.name])})
	}
	return out, nil
}
