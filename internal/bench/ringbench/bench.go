package ringbench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
	"github.com/kv3fs/kv3fs/internal/shm"
)

// Run measures and reports. An interrupted or failed run reports the cases that
// were complete, together with the error.
func Run(ctx context.Context, o Options) (_ *Report, err error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	data, mount := o.Data, o.Mount
	var own *measure.Daemon
	if data == "" {
		var flags []string
		if o.Checksums { // they are what the others are compared with
			flags = append(flags, "--checksums", "off")
		}
		if o.Restart {
			flags = append(flags, "--restart-state", "off")
		}
		start := measure.StartDaemon
		if o.Scrape {
			start = measure.StartMetered
		}
		if own, err = start(ctx, o.Binary, o.Scratch, o.IO, flags...); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, own.Stop()) }()
		data, mount = own.Data, own.Mount
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
	b := &bench{o: o, files: f, fio: !o.NoFio, progress: measure.NewProgress(o.Done)}
	if o.Scrape {
		b.scraped = own
	}
	if o.Checksums {
		if b.keeper, err = measure.StartMetered(ctx, o.Binary, o.Scratch, o.IO, "--checksums", "on"); err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, b.keeper.Stop()) }()
		if b.summed, err = makeFiles(ctx, b.keeper.Data, b.keeper.Mount, o.Rings, o.FileBytes); err != nil {
			return nil, err
		}
		if err := b.summed.copyThroughRing(ctx); err != nil {
			return nil, fmt.Errorf("bench: %w", err)
		}
	}
	if o.Restart {
		state, failed := newState()
		if failed != nil {
			return nil, fmt.Errorf("bench: %w", failed)
		}
		defer func() { err = errors.Join(err, os.RemoveAll(state)) }()
		d, failed := measure.StartDaemon(ctx, o.Binary, o.Scratch, o.IO, "--restart-state", filepath.Join(state, "state"))
		if failed != nil {
			return nil, failed
		}
		defer func() { err = errors.Join(err, d.Stop()) }()
		if b.outliving, err = makeFiles(ctx, d.Data, d.Mount, o.Rings, o.FileBytes); err != nil {
			return nil, err
		}
	}
	if _, err := exec.LookPath("fio"); err != nil && b.fio {
		b.fio = false
		o.Notice("fio is not installed: no io_uring column")
	}
	cases := o.cases()
	for _, c := range cases {
		done, err := b.measure(ctx, c, len(cases))
		if err != nil {
			return rep, fmt.Errorf("bench: %s of %s: %w", c.op(), measure.SizeText(c.sizeBytes), err)
		}
		rep.Cases = append(rep.Cases, done)
	}
	return rep, nil
}

type bench struct {
	o     Options
	files *files
	fio   bool
	// summed are the same files of a daemon that keeps checksums; nil: there is none.
	summed *files
	keeper *measure.Daemon // of summed
	// outliving are the same files of a daemon whose rings outlive it; nil: there is none.
	outliving *files
	// scraped is the daemon whose metrics are read; nil: none.
	scraped *measure.Daemon

	progress *measure.Progress
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
		for _, f := range []*files{b.files, b.summed, b.outliving} {
			if f == nil {
				continue
			}
			if err := f.dropCaches(); err != nil {
				return Case{}, err
			}
		}
	}
	rates := map[string][]float64{}
	before, err := b.compared(ctx)
	if err != nil {
		return Case{}, err
	}
	read := int64(0) // by the daemon with checksums
	b.progress.Expect(cases * len(contenders) * b.o.Runs)
	err = measure.Turns(ctx, b.o.rounds(), contenders, func(ctx context.Context, x contender, turn measure.Turn) error {
		s, err := x.run(ctx, turn.Time, turn.Round)
		if err != nil && x.name() == nameFio && !turn.Counts() && ctx.Err() == nil {
			// Often no io_uring in a container. The others do not need it.
			b.o.Notice(fmt.Sprintf("no io_uring column: %v", err))
			b.fio = false
			b.progress.Expect(cases * (len(contenders) - 1) * b.o.Runs)
			return measure.ErrUnavailable
		}
		if x.name() == nameSums {
			read += s.requests * c.sizeBytes
		}
		if err == nil && turn.Counts() {
			rates[x.name()] = append(rates[x.name()], float64(s.requests*c.sizeBytes)/s.elapsed.Seconds()/1e9)
			b.progress.Step()
		}
		return err
	})
	if err != nil {
		return Case{}, err
	}
	done := caseOf(c, rates)
	if b.keeper != nil && !c.write {
		after, err := b.compared(ctx)
		if err != nil {
			return Case{}, err
		}
		share := (after - before) / float64(read)
		done.Compared = &share
	}
	return done, nil
}

// compared returns how many bytes the daemon with checksums has compared with them.
func (b *bench) compared(ctx context.Context) (float64, error) {
	if b.keeper == nil {
		return 0, nil
	}
	return b.keeper.Metric(ctx, "kv3fs_checksums_verified_bytes_total")
}

// contenders makes the contenders of a case, fio last. With an error it returns those
// that are to be closed.
func (b *bench) contenders(ctx context.Context, c testCase) (all []contender, err error) {
	direct := b.o.IO == "direct"
	ring, err := newRingContender(ctx, c, b.files, nameRing)
	if err != nil {
		return all, err
	}
	all = append(all, ring) // closed last, because the others use its buffers
	if b.scraped != nil {
		all = append(all, scraped{ring, b.scraped})
	}
	if b.summed != nil {
		sums, err := newRingContender(ctx, c, b.summed, nameSums)
		if err != nil {
			return all, err
		}
		all = append(all, sums)
	}
	if b.outliving != nil {
		journal, err := newRingContender(ctx, c, b.outliving, nameRestart)
		if err != nil {
			return all, err
		}
		all = append(all, journal)
	}
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

// newState makes a directory for the state of restarts, which must be in a tmpfs.
func newState() (string, error) { return os.MkdirTemp(shm.Dir, "kv3fs-bench-") }
