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
	b := &bench{o: o, daemon: d}
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
	for _, part := range []func(context.Context, *Report) error{b.cold, b.warm, b.segments, b.lookups, b.calls} {
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
	runs   int // done
}

// contenders are how many there are in all cases.
const contenders = 6 + 3 + 2 + 2

func (b *bench) done() {
	b.runs++
	b.o.Done(b.runs, contenders*b.o.Runs)
}

// turns lets the contenders of a case load sets, run by run.
func (b *bench) turns(ctx context.Context, all []*contender, sets []*blocks) ([]Load, error) {
	rates := map[string][]float64{}
	// Round 0 warms up and is not counted.
	for round := range b.o.Runs + 1 {
		d := b.o.RunTime
		if round == 0 {
			d /= 5
		}
		for i := range all {
			// Another begins each round, so that none always follows the same one.
			x := all[(i+round)%len(all)]
			gbps, err := x.sample(ctx, sets, d, round)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				rates[x.name] = append(rates[x.name], gbps)
				b.done()
			}
		}
	}
	var out []Load
	for _, x := range all {
		out = append(out, Load{Way: x.name, GBps: measure.SpreadOf(rates[x.name])})
	}
	return out, nil
}
