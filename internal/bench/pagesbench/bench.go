package pagesbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// Run measures and returns a report. After an interruption or an error, the report has
// what was complete.
func Run(ctx context.Context, o Options) (*Report, error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	if o.Scratch == "" {
		o.Scratch = os.TempDir()
	}
	b := &bench{o: o, progress: measure.NewProgress(o.Done), report: &Report{
		URL: o.URL, FileSystem: measure.FileSystemName(o.Scratch), CPUs: runtime.NumCPU(),
		Clients: o.Clients, Batch: o.Batch, Pages: o.Pages, Runs: o.Runs, RunSeconds: o.RunTime.Seconds(),
	}}
	for _, d := range o.dialects() {
		b.report.Protocols = append(b.report.Protocols, Protocol{Name: d.name})
		if err := b.measure(ctx, d, &b.report.Protocols[len(b.report.Protocols)-1]); err != nil {
			return b.report, fmt.Errorf("bench: %s: %w", d.name, err)
		}
	}
	return b.report, nil
}

type bench struct {
	o      Options
	report *Report

	progress *measure.Progress
}

// measure measures one protocol. Each part begins with fresh services, so that no part
// slows down a later one.
func (b *bench) measure(ctx context.Context, d dialect, p *Protocol) error {
	for _, t := range testCases() {
		err := b.withClientGroups(ctx, d, func(groups []*clientGroup) error {
			r, err := b.rate(ctx, t, groups)
			if err == nil {
				p.Rates = append(p.Rates, r)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("%s: %w", t.name, err)
		}
	}
	err := b.withClientGroups(ctx, d, func(groups []*clientGroup) error {
		for _, t := range testCases()[:3] {
			w, err := b.wait(ctx, t, groups)
			if err != nil {
				return fmt.Errorf("%s: %w", t.name, err)
			}
			p.Waits = append(p.Waits, w)
		}
		return nil
	})
	if err != nil || b.o.URL != "" {
		return err
	}
	return b.withServices(ctx, func(services []*service) error {
		for _, s := range services {
			f, err := measureFull(ctx, d, s, b.o.Clients, b.o.Batch, b.o.Pages)
			if err != nil {
				return err
			}
			if s.name == nameOurs {
				p.Full = &f
			} else {
				p.ReferenceFull = &f
			}
		}
		return nil
	})
}

// withServices calls do with fresh contenders, kv3fs first.
func (b *bench) withServices(ctx context.Context, do func([]*service) error) (err error) {
	var services []*service
	defer func() {
		for _, s := range services {
			err = errors.Join(err, s.stop())
		}
	}()
	if b.o.URL == "" {
		s, err := startOurs(ctx, b.o.Binary, b.o.Scratch)
		if err != nil {
			return err
		}
		services = append(services, s)
	} else {
		to, err := b.o.urlTarget()
		if err != nil {
			return err
		}
		services = append(services, &service{name: nameOurs, to: to})
	}
	if b.o.Python != "" {
		s, err := startReference(ctx, b.o.Python, b.o.Scratch)
		if err != nil {
			return err
		}
		services = append(services, s)
	}
	return do(services)
}

// withClientGroups calls do with the clients of fresh contenders.
func (b *bench) withClientGroups(ctx context.Context, d dialect, do func([]*clientGroup) error) error {
	return b.withServices(ctx, func(services []*service) (err error) {
		var groups []*clientGroup
		defer func() {
			for _, c := range groups {
				err = errors.Join(err, c.close())
			}
		}()
		for _, s := range services {
			c, err := newClientGroup(ctx, d, s, b.o.Clients, b.o.Batch, b.o.Pages)
			if err != nil {
				return err
			}
			groups = append(groups, c)
		}
		return do(groups)
	})
}

// rate lets the contenders take turns at a case.
func (b *bench) rate(ctx context.Context, t testCase, groups []*clientGroup) (Rate, error) {
	perSecond, cpu := map[string][]float64{}, map[string][]float64{}
	var client []float64 // of the clients of kv3fs
	err := measure.Turns(ctx, b.o.rounds(), groups, func(ctx context.Context, c *clientGroup, turn measure.Turn) error {
		if t.fills && c.service.name == nameReference {
			if err := c.empty(); err != nil {
				return err
			}
		}
		got, err := c.run(ctx, turn.Time, t.do)
		if err != nil || !turn.Counts() {
			return err
		}
		perSecond[c.service.name] = append(perSecond[c.service.name], got.perSecond)
		cpu[c.service.name] = append(cpu[c.service.name], got.cpuMicros)
		if c.service.name == nameOurs {
			client = append(client, got.clientMicros)
		}
		b.step(len(groups))
		return nil
	})
	if err != nil {
		return Rate{}, err
	}
	r := Rate{
		Case: t.name, Ours: measure.SpreadOf(perSecond[nameOurs]),
		CPUMicros: measure.SpreadOf(cpu[nameOurs]).Median, ClientCPUMicros: measure.SpreadOf(client).Median,
	}
	if len(groups) > 1 {
		reference := measure.SpreadOf(perSecond[nameReference])
		r.Reference = &reference
		r.ReferenceCPUMicros = measure.SpreadOf(cpu[nameReference]).Median
		r.Ratio = r.Ours.Median / reference.Median
		if r.CPUMicros > 0 { // then it is on this machine, like its clients
			r.RatioBound = float64(b.report.CPUs) * 1e6 / (r.CPUMicros + r.ClientCPUMicros) / reference.Median
		}
	}
	return r, nil
}

// wait measures how long a single client waits, once for each contender.
func (b *bench) wait(ctx context.Context, t testCase, groups []*clientGroup) (Wait, error) {
	w := Wait{Case: t.name}
	for _, c := range groups {
		waits, err := c.waits(ctx, b.o.RunTime, t.do)
		if err != nil {
			return w, err
		}
		l := latencyOf(waits)
		if c.service.name == nameOurs {
			w.Ours = l
		} else {
			w.Reference = &l
		}
		b.step(len(groups))
	}
	return w, nil
}

// step counts one run, when so many contenders take turns.
func (b *bench) step(contenders int) {
	b.progress.Expect(len(b.o.Protocols) * contenders * (len(testCases())*b.o.Runs + len(testCases()) - 1))
	b.progress.Step()
}
