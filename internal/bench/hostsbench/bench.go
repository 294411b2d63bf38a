package hostsbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/bench/pagesbench"
	"github.com/kv3fs/kv3fs/internal/bench/ringbench"
)

// Run measures and reports. What was complete is reported with the error.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	for _, h := range o.Hosts {
		if len(h.Command) > 0 {
			continue // its processes make them
		}
		for _, dir := range []string{h.Near, h.Far} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return nil, fmt.Errorf("bench: %w", err)
			}
		}
	}
	first := o.Hosts[0]
	b := &bench{o: o, name: fmt.Sprintf("kv3fs-bench-hosts-%d", os.Getpid()), rep: &Report{
		Hosts: len(o.Hosts), Store: o.Store, CPUs: runtime.NumCPU(), Seed: o.Seed, Rows: []Row{},
		Near: place(first.Near, first), Far: place(first.Far, first),
	}}
	defer func() { err = errors.Join(err, b.remove()) }()
	for _, part := range []struct {
		name string
		run  func(context.Context) error
	}{{PartEngine, b.orders}, {PartReads, b.reads}, {PartRings, b.rings}, {PartPages, b.pages}} {
		if !o.has(part.name) {
			continue
		}
		if err := part.run(ctx); err != nil {
			return b.rep, err
		}
	}
	return b.rep, nil
}

// place says where a directory is, and on which file system if that is seen from here.
func place(dir string, h Host) string {
	if len(h.Command) > 0 {
		return dir
	}
	return fmt.Sprintf("%s (%s)", dir, measure.FileSystemName(dir))
}

type bench struct {
	o    Options
	name string // of the directories that it makes in those of the hosts
	rep  *Report
}

// remove removes what was made on the hosts. What is in a 3FS stays.
func (b *bench) remove() (err error) {
	for _, h := range b.o.Hosts {
		dirs := []string{filepath.Join(h.Near, b.name)}
		if b.o.last() != "Ds3fs" {
			dirs = append(dirs, filepath.Join(h.Far, b.name))
		}
		if len(h.Command) == 0 {
			for _, dir := range dirs {
				err = errors.Join(err, os.RemoveAll(dir))
			}
			continue
		}
		cmd := h.on(context.Background(), "rm", append([]string{"-rf", "--"}, dirs...)...)
		if out, e := cmd.CombinedOutput(); e != nil {
			err = errors.Join(err, fmt.Errorf("bench: remove %s: %w: %s", strings.Join(dirs, ", "), e, tail(out)))
		}
	}
	return err
}

// orders runs the queries in each order, with prompts of its own.
func (b *bench) orders(ctx context.Context) error {
	for i, order := range b.o.Orders {
		if err := b.order(ctx, order, b.o.Seed+uint64(i)); err != nil {
			return err
		}
	}
	return nil
}

// order runs the queries in one order: on the first host, which fills the store; on a second one
// that has nothing; and on that one again, other queries, when its own disk has the prefixes.
func (b *bench) order(ctx context.Context, order string, seed uint64) error {
	for step, run := range []struct {
		name string
		host int
	}{{rowWarm, 0}, {rowCold, 1}, {rowOwn, 1}} {
		b.o.Notice(fmt.Sprintf("%s: %s, on host %d", order, run.name, run.host+1))
		r, err := b.engine(ctx, run.host, order, seed, uint64(step))
		if err != nil {
			return err
		}
		for i, row := range r.Rows {
			name := run.name
			if i < len(r.Rows)-1 {
				name = rowMemory
			}
			b.rep.Rows = append(b.rep.Rows, rowOf(order, name, run.host+1, row))
		}
		if last := r.Rows[len(r.Rows)-1]; b.rep.Scale == 0 {
			b.rep.Scale, b.rep.TimeScale, b.rep.Bandwidth = r.Scale, r.TimeScale, r.Bandwidth
			b.rep.Model, b.rep.Hardware = last.Model, last.Hardware
			b.rep.InputTokens, b.rep.Output, b.rep.Concurrent = last.InputTokens, r.OutputTokens, last.Concurrent
			b.rep.Groups, b.rep.Queries = r.Groups, r.Queries
		}
	}
	return nil
}

// readerChain is the chain without Cache.
func (b *bench) readerChain() string { return strings.TrimPrefix(b.o.Store, "Cache|") }

// reads has one host read from its own disk, then two at once, and so on.
func (b *bench) reads(ctx context.Context) (err error) {
	if chain := b.readerChain(); chain != "Segment|Posix" && chain != "Segment|Ds3fs" {
		b.rep.Problems = append(b.rep.Problems, fmt.Sprintf("reads from the hosts' own disks are measured with Posix or Ds3fs as the last store, not with %s", b.o.last()))
		return nil
	}
	b.o.Notice("reading from the hosts' own disks")
	var readers []*reading
	defer func() {
		for i, r := range readers {
			if e := r.end(); e != nil && ctx.Err() == nil {
				err = errors.Join(err, fmt.Errorf("bench: the reader on host %d: %w: %s", i+1, e, tail(r.said.Bytes())))
			}
		}
	}()
	for i := range b.o.Hosts {
		r, err := b.startReader(ctx, i)
		if err != nil {
			return err
		}
		readers = append(readers, r)
	}
	const rounds = 3
	for n := 1; n <= len(readers); n++ {
		var rates, perGB []float64
		at := Reads{Hosts: n}
		for range rounds {
			results, err := together(readers[:n])
			if err != nil {
				return err
			}
			var rate, cpu, gb float64
			for _, r := range results {
				rate += float64(r.Bytes) / r.Seconds / 1e9
				cpu += r.CPUSeconds
				gb += float64(r.Bytes) / 1e9
				at.FromNext += r.FromNext
				at.WrongByte += r.WrongBytes
			}
			rates, perGB = append(rates, rate), append(perGB, cpu/gb)
		}
		at.GBps, at.CPUPerGB = measure.SpreadOf(rates).Median, measure.SpreadOf(perGB).Median
		one := at
		if n > 1 {
			one = b.rep.Reads[0]
		}
		at.Scaling = at.GBps / one.GBps
		// As many hosts as there are processors for, at the processor time that one takes.
		at.Bound = float64(n)
		if most := float64(b.rep.CPUs) / (one.CPUPerGB * one.GBps); one.CPUPerGB > 0 {
			at.Bound = min(at.Bound, max(1, most))
		}
		b.rep.Reads = append(b.rep.Reads, at)
		if at.WrongByte > 0 {
			return fmt.Errorf("bench: %d wrong bytes were read", at.WrongByte)
		}
	}
	return nil
}

// together lets readers read at the same time.
func together(readers []*reading) ([]ReaderResult, error) {
	results, errs := make([]ReaderResult, len(readers)), make([]error, len(readers))
	var all sync.WaitGroup
	for i, r := range readers {
		all.Go(func() {
			if _, err := fmt.Fprintln(r.in); err != nil {
				errs[i] = fmt.Errorf("bench: the reader on host %d: %w", i+1, err)
				return
			}
			results[i], errs[i] = r.result(i)
		})
	}
	all.Wait()
	return results, errors.Join(errs...)
}

// rings compares rings of a daemon in shared mode with plain reads that bypass the page cache.
func (b *bench) rings(ctx context.Context) (err error) {
	b.o.Notice("reading through rings in shared mode")
	d, err := measure.StartDaemon(ctx, b.o.Binary, b.o.RingScratch, "auto", "--shared", "on")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Stop()) }()
	r, err := ringbench.Run(ctx, ringbench.Options{
		Data: d.Data, Mount: d.Mount, IO: "direct", SizesBytes: []int64{128 << 10, 1 << 20, 4 << 20}, FileBytes: 256 << 20,
		RunTime: b.o.RingTime, NoFio: true, Notice: b.o.Notice,
	})
	if r != nil {
		for _, c := range slices.DeleteFunc(r.Cases, func(c ringbench.Case) bool { return c.Op != "read" }) {
			b.rep.Rings = append(b.rep.Rings, Ring{SizeBytes: c.SizeBytes, Threads: c.Threads, Ring: c.Ring, Plain: c.Plain, Ratio: c.RingToPlain})
		}
	}
	return err
}

// pages compares page services.
func (b *bench) pages(ctx context.Context) (err error) {
	b.o.Notice("asking the page services")
	b.rep.Pages, err = pagesbench.Hosts(ctx, pagesbench.HostsOptions{URLs: b.o.PagesURLs, Failover: b.o.Failover, RunTime: b.o.PagesTime})
	return err
}
