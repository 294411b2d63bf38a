package ringbench

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// Run measures and reports. An interrupted or failed run reports the cases that
// were complete, together with the error.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	data, mount := o.Data, o.Mount
	if data == "" {
		d, err := measure.StartDaemon(ctx, o.Binary, o.Scratch, o.IO)
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, d.Stop()) }()
		data, mount = d.Data, d.Mount
	}
	rep := &Report{
		Data: data, FileSystem: measure.FileSystemName(data), IO: o.IO, Started: o.Data == "",
		CPUs: runtime.NumCPU(), Runs: o.Runs, RunSeconds: o.RunTime.Seconds(), FileBytes: o.FileBytes,
	}
	f, err := makeFiles(ctx, data, mount, o.Rings, o.FileBytes)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.remove()) }()
	if rep.Setup, err = measureSetup(ctx, mount); err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	b := &bench{o: o, files: f, fio: !o.NoFio}
	if _, err := exec.LookPath("fio"); err != nil && b.fio {
		b.fio = false
		o.Notice("fio is not installed: no io_uring column")
	}
	cases := o.cases()
	for _, c := range cases {
		done, err := b.measure(ctx, c, len(cases))
		if err != nil {
			return rep, fmt.Errorf("bench: %s of %s: %w", c.op(), sizeText(c.sizeBytes), err)
		}
		rep.Cases = append(rep.Cases, done)
	}
	return rep, nil
}

type bench struct {
	o     Options
	files *files
	fio   bool
	runs  int // done
}

// measure lets the contenders of a case take turns.
func (b *bench) measure(ctx context.Context, c testCase, cases int) (_ Case, err error) {
	contenders, err := b.contenders(ctx, c)
	defer func() {
		for _, x := range slices.Backward(contenders) {
			err = errors.Join(err, x.close())
		}
	}()
	if err != nil {
		return Case{}, err
	}
	if b.o.IO == "direct" {
		if err := b.files.dropCaches(); err != nil {
			return Case{}, err
		}
	}
	rates := map[string][]float64{}
	// Round 0 warms up and is not counted.
	for round := range b.o.Runs + 1 {
		// Another begins each round: what one leaves behind in the disk's queues
		// and buffers would always meet the same next one.
		turn := contenders
		for i := range turn {
			x := turn[(i+round)%len(turn)]
			d := b.o.RunTime
			if round == 0 {
				d /= 5
			}
			s, err := x.run(ctx, d, round)
			switch {
			case err != nil && ctx.Err() != nil:
				return Case{}, ctx.Err()
			case err != nil && x.name() == nameFio && round == 0:
				// Often no io_uring in a container. The others do not need it.
				b.o.Notice(fmt.Sprintf("no io_uring column: %v", err))
				b.fio = false
				contenders = contenders[:len(contenders)-1]
				continue
			case err != nil:
				return Case{}, err
			}
			if round > 0 {
				rates[x.name()] = append(rates[x.name()], float64(s.requests*c.sizeBytes)/s.elapsed.Seconds()/1e9)
				b.runs++
				b.o.Done(b.runs, cases*len(contenders)*b.o.Runs)
			}
		}
	}
	return caseOf(c, rates), nil
}

// contenders are those of a case, fio last. They are returned also with an
// error, to be closed.
func (b *bench) contenders(ctx context.Context, c testCase) (all []contender, err error) {
	direct := b.o.IO == "direct"
	ring, err := newRingContender(ctx, c, b.files)
	if err != nil {
		return all, err
	}
	all = append(all, ring) // closed last: the others use its buffers
	mount, err := newMountContender(c, b.files, ring.buffers(), direct)
	if err != nil {
		return all, err
	}
	all = append(all, mount)
	plain, err := newPlainContender(c, b.files, ring.buffers(), direct)
	if err != nil {
		return all, err
	}
	all = append(all, plain)
	if b.fio {
		all = append(all, &fioContender{c, b.files, direct})
	}
	return all, nil
}
