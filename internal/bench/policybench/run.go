package policybench

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Capacity is a size of the cache: a share of the trace's different blocks, or a number of
// blocks.
type Capacity struct {
	Percent float64 // 0 if Blocks is set
	Blocks  int
}

// UnmarshalText parses "5%" or "10000".
func (c *Capacity) UnmarshalText(text []byte) error {
	s := string(text)
	if number, ok := strings.CutSuffix(s, "%"); ok {
		percent, err := strconv.ParseFloat(number, 64)
		if err != nil || !(percent > 0) || percent > 100 {
			return fmt.Errorf("a capacity of %q; write more than 0%% and at most 100%% of the trace's different blocks, such as 5%%", s)
		}
		*c = Capacity{Percent: percent}
		return nil
	}
	blocks, err := strconv.Atoi(s)
	if err != nil || blocks < 1 {
		return fmt.Errorf("a capacity of %q; write a share of the trace's different blocks, such as 5%%, or a number of blocks", s)
	}
	*c = Capacity{Blocks: blocks}
	return nil
}

func (c Capacity) String() string {
	if c.Percent > 0 {
		return strconv.FormatFloat(c.Percent, 'g', -1, 64) + "%"
	}
	return strconv.Itoa(c.Blocks)
}

// blocksOf returns the size in blocks, at least one.
func (c Capacity) blocksOf(t *Trace) (int, error) {
	if c.Percent > 0 {
		return max(1, int(math.Round(c.Percent/100*float64(t.DistinctBlocks)))), nil
	}
	if c.Blocks > t.DistinctBlocks {
		return 0, fmt.Errorf("a capacity of %d blocks; the trace has only %d different ones, which fit into a cache of that many", c.Blocks, t.DistinctBlocks)
	}
	return c.Blocks, nil
}

// Options describe a run.
type Options struct {
	Capacities []Capacity
	// Done is called when so many simulations of so many are over. nil: not called.
	Done func(runs, of int)
}

// Check returns an error if the options make no sense for any trace.
func (o Options) Check() error {
	if len(o.Capacities) == 0 {
		return errors.New("no capacity is given")
	}
	seen := map[Capacity]bool{}
	for _, c := range o.Capacities {
		if seen[c] {
			return fmt.Errorf("capacity %v is given twice", c)
		}
		seen[c] = true
	}
	return nil
}

// Run simulates all policies at each capacity. If ctx ends first, the report has the
// capacities that were complete.
func Run(ctx context.Context, t *Trace, o Options) (*Report, error) {
	if err := o.Check(); err != nil {
		return nil, err
	}
	sizes := make([]int, len(o.Capacities))
	for i, c := range o.Capacities {
		var err error
		if sizes[i], err = c.blocksOf(t); err != nil {
			return nil, err
		}
	}
	r := &Report{Trace: t.Name, Requests: t.Requests(), References: t.References(), DistinctBlocks: t.DistinctBlocks}
	// With room for everything, any policy serves what was seen before.
	hits, err := simulate(ctx, t, newLRU(t.DistinctBlocks, t.DistinctBlocks))
	if err != nil {
		return r, err
	}
	ratio := func(hits int) float64 { return float64(hits) / float64(t.References()) }
	r.UnlimitedRatio = ratio(hits)
	runs, of := 0, len(sizes)*(len(contenders())+1)
	done := func() {
		if runs++; o.Done != nil {
			o.Done(runs, of)
		}
	}
	for i, blocks := range sizes {
		row := Row{Capacity: o.Capacities[i].String(), Blocks: blocks}
		for _, c := range contenders() {
			hits, err := simulate(ctx, t, c.make(t.DistinctBlocks, blocks))
			if err != nil {
				return r, err
			}
			*row.ratioOf(c.name) = ratio(hits)
			done()
		}
		best, err := optimum(ctx, t, blocks)
		if err != nil {
			return r, err
		}
		row.Optimum = ratio(best)
		done()
		if row.LRU > 0 {
			row.ToLRU = row.Ours / row.LRU
		}
		row.Aim = r.aim(o.Capacities[i])
		r.Capacities = append(r.Capacities, row)
	}
	return r, nil
}
