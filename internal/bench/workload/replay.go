package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/usrbio"
)

// ReplayOptions say how a trace is replayed. The zero value of a field means its
// default.
type ReplayOptions struct {
	Mount string // a path on the mount; required
	Dir   string // directory below it that holds the blocks; default kv3fs-replay

	// Ranks is the number of ranks that work on every request, as in tensor parallelism.
	// Each has its own rings, iov and slice of every block. Default 1.
	Ranks int
	// Depth is the number of blocks that a rank has in flight. Default 32.
	Depth int
	// BlockBytes is one rank's slice of a block. Default 1 MiB.
	BlockBytes int64
	// MaxBlocks is the most blocks that are written, where all ranks' slices of a block
	// count as one. Default: what fits in half the free space.
	MaxBlocks int64
	// DistinctBlocks is how many blocks the trace has, 0 if that is not known.
	DistinctBlocks int64
	// MaxRequests ends the replay early. Default: the whole trace.
	MaxRequests int
	// Speed is how much faster than in the trace requests arrive; 0 sends each as soon as
	// the one before has finished.
	Speed float64
	// WaitLimit is how long one completion may take before the replay gives up. Default
	// 30 s.
	WaitLimit time.Duration

	// Notice gets lines for a person, one at a time, about decisions and failures. nil:
	// they are dropped.
	Notice func(line string)
	// Done is called after every request, with their number.
	Done func(requests int)
}

// Check reports options that cannot be run with.
func (o ReplayOptions) Check() error { return o.fillDefaults() }

func (o *ReplayOptions) fillDefaults() error {
	if o.Mount == "" {
		return errors.New("replay: no mount given")
	}
	if o.Dir == "" {
		o.Dir = "kv3fs-replay"
	}
	if !filepath.IsLocal(o.Dir) {
		return fmt.Errorf("replay: directory %q must be a name below the mount", o.Dir)
	}
	if o.Ranks == 0 {
		o.Ranks = 1
	}
	if o.Depth == 0 {
		o.Depth = 32
	}
	if o.BlockBytes == 0 {
		o.BlockBytes = 1 << 20
	}
	if o.WaitLimit == 0 {
		o.WaitLimit = 30 * time.Second
	}
	notice := o.Notice
	var mu sync.Mutex // ranks call Notice at the same time
	o.Notice = func(line string) {
		mu.Lock()
		defer mu.Unlock()
		if notice != nil {
			notice(line)
		}
	}
	if o.Done == nil {
		o.Done = func(int) {}
	}
	switch {
	case o.Ranks < 1 || o.Ranks > 1024:
		return fmt.Errorf("replay: %d ranks; choose 1 to 1024", o.Ranks)
	case o.Depth < 1 || o.Depth > 1<<16:
		return fmt.Errorf("replay: a depth of %d; choose 1 to %d", o.Depth, 1<<16)
	case o.BlockBytes < 1 || o.BlockBytes > 1<<32:
		return fmt.Errorf("replay: blocks of %d bytes; choose 1 byte to 4 GiB", o.BlockBytes)
	case o.MaxBlocks < 0 || o.MaxRequests < 0:
		return errors.New("replay: limits must not be negative")
	case !(o.Speed >= 0):
		return fmt.Errorf("replay: a speed of %v; 1 is the trace's pace, 0 is as fast as possible", o.Speed)
	}
	return nil
}

// maxErrors is the number of I/O errors after which a replay gives up.
const maxErrors = 100

// interruptLimit bounds the wait for what is in flight when a replay is
// interrupted.
const interruptLimit = 3 * time.Second

// Replay replays a trace against the 3FS at o.Mount and checks every byte that it reads.
//
// Each request is served as engines serve it. Its leading blocks are looked up by name, on
// all ranks, up to the first that is missing on one of them. Those are loaded through the
// ranks' rings. The others are written through rings under a temporary name and renamed
// when their data is complete. A request has finished when all its ranks have, and only
// then does the next one start.
//
// If there is an error (I/O errors, wrong bytes, or the end of ctx), the report is still
// right for what was done.
func Replay(ctx context.Context, t *Reader, o ReplayOptions) (rep *Report, err error) {
	if err := o.fillDefaults(); err != nil {
		return nil, err
	}
	r, err := newReplay(ctx, o)
	if err != nil {
		return nil, err
	}
	// Ranks last: nothing may touch their memory when the mount closes it.
	defer func() { err = errors.Join(err, r.close()) }()

	r.report.Trace = t.Name()
	began := time.Now()
	for err == nil && (o.MaxRequests == 0 || r.report.Requests < o.MaxRequests) {
		var q Request
		if q, err = t.Read(); err != nil {
			break
		}
		if err = r.pace(ctx, began, q.Arrival); err != nil {
			break
		}
		if err = r.request(ctx, q); err == nil {
			o.Done(r.report.Requests)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if err == nil && r.report.Requests == 0 {
		err = fmt.Errorf("%s: no requests in it", t.Name())
	}
	r.report.ElapsedSeconds = time.Since(began).Seconds()
	r.report.finish(r.ranks)
	if verdict := r.report.verdict(); verdict != nil {
		err = errors.Join(err, verdict)
	}
	return r.report, err
}

// replay is a replay in progress.
type replay struct {
	o     ReplayOptions
	dir   string
	temps string // of this process
	mount *usrbio.Mount
	ranks []*rank

	report  *Report
	written map[uint64]struct{} // blocks this replay has stored
	left    int64               // blocks that may still be written
	full    bool                // no space left: nothing more is written
}

func newReplay(ctx context.Context, o ReplayOptions) (_ *replay, err error) {
	r := &replay{
		o: o, dir: filepath.Join(o.Mount, o.Dir),
		written: map[uint64]struct{}{},
		report:  newReport(o),
	}
	if r.mount, err = usrbio.Open(ctx, o.Mount); err != nil {
		if errors.Is(err, usrbio.ErrNotMounted) {
			err = fmt.Errorf("%s is not on a 3FS mount; start one with `kv3fs serve --data DIR --mount %s`: %w", o.Mount, o.Mount, err)
		}
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, r.close())
		}
	}()
	self, err := thisProcess()
	if err != nil {
		return nil, err
	}
	removed, err := removeDeadTemps(r.dir, self)
	if err != nil {
		return nil, fmt.Errorf("temporary files of earlier replays: %w", err)
	}
	if removed > 0 {
		o.Notice(fmt.Sprintf("removed %d temporary files of replays that were killed", removed))
	}
	r.temps = filepath.Join(r.dir, tempDir, self.String())
	if err := os.MkdirAll(r.temps, 0o755); err != nil {
		return nil, err
	}
	if r.left, err = r.budget(); err != nil {
		return nil, err
	}
	r.report.MaxBlocks = r.left
	for n := range o.Ranks {
		k, err := newRank(ctx, r, n)
		if err != nil {
			return nil, fmt.Errorf("rank %d: %w", n, err)
		}
		r.ranks = append(r.ranks, k)
	}
	return r, nil
}

// close stops the ranks, closes rings and iovs, and removes temporary files.
func (r *replay) close() error {
	for _, k := range r.ranks {
		k.stop()
	}
	err := r.mount.Close(context.Background()) // also when interrupted
	if r.temps != "" {
		if e := os.RemoveAll(r.temps); e != nil && !errors.Is(e, unix.ENOTCONN) {
			err = errors.Join(err, e)
		}
		os.Remove(filepath.Dir(r.temps)) // unless another replay uses it
	}
	return err
}

// pace waits until a request is due.
func (r *replay) pace(ctx context.Context, began time.Time, arrival time.Duration) error {
	if r.o.Speed == 0 {
		return ctx.Err()
	}
	wait := time.Until(began.Add(time.Duration(float64(arrival) / r.o.Speed)))
	if wait < 0 {
		r.report.MaxLagSeconds = max(r.report.MaxLagSeconds, -wait.Seconds())
		return ctx.Err()
	}
	select {
	case <-time.After(wait):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// request serves one request on all ranks.
func (r *replay) request(ctx context.Context, q Request) error {
	rep := r.report
	run := len(q.Blocks)
	began := time.Now()
	err := r.each(func(k *rank) error { return k.lookup(q.Blocks) })
	took := time.Since(began)
	if err != nil {
		return err
	}
	rep.lookup.record(took)
	for _, k := range r.ranks {
		run = min(run, k.run)
	}
	if run > 0 {
		if err := r.each(func(k *rank) error { return k.load(ctx, q.Blocks[:run]) }); err != nil {
			return err
		}
		var slowest time.Duration
		for _, k := range r.ranks {
			run = min(run, k.run)
			slowest = max(slowest, k.took)
		}
		rep.load.record(slowest)
		rep.LoadSeconds += slowest.Seconds()
	}
	rep.Requests++
	rep.Tokens += int64(q.InputTokens)
	rep.Blocks += int64(len(q.Blocks))
	rep.HitBlocks += int64(run)
	rep.HitTokens += int64(q.HitTokens(run))
	for _, id := range q.Blocks[:run] {
		if _, ours := r.written[id]; !ours {
			rep.EarlierHitBlocks++
		}
	}
	if err := r.store(ctx, q.Blocks[run:]); err != nil {
		return err
	}
	if n := r.errors(); n >= maxErrors {
		return fmt.Errorf("giving up after %d I/O errors", n)
	}
	return nil
}

// store writes the missing blocks, as far as MaxBlocks allows.
func (r *replay) store(ctx context.Context, missing []uint64) error {
	n := len(missing)
	if r.full {
		r.report.NoSpaceBlocks += int64(n)
		return nil
	}
	if int64(n) > r.left {
		n = int(r.left)
		r.report.SkippedBlocks += int64(len(missing) - n)
	}
	if n == 0 {
		return nil
	}
	if err := r.each(func(k *rank) error { return k.store(ctx, missing[:n]) }); err != nil {
		return err
	}
	var slowest time.Duration
	for _, k := range r.ranks {
		n = min(n, k.run)
		slowest = max(slowest, k.took)
		r.full = r.full || k.full
	}
	for _, id := range missing[:n] {
		r.written[id] = struct{}{}
	}
	r.left -= int64(n)
	r.report.StoredBlocks += int64(n)
	r.report.StoreSeconds += slowest.Seconds()
	r.report.store.record(slowest)
	if r.full {
		r.report.NoSpaceBlocks += int64(len(missing) - n)
		r.o.Notice(fmt.Sprintf("no space left on %s after %s blocks: the replay goes on without writing; make room, or cap it with --max-blocks",
			r.o.Mount, countText(r.report.StoredBlocks)))
	}
	return nil
}

// each lets every rank do one step and waits for all of them.
func (r *replay) each(step func(*rank) error) error {
	var wg sync.WaitGroup
	errs := make([]error, len(r.ranks))
	for i, k := range r.ranks {
		wg.Add(1)
		k.steps <- func() {
			defer wg.Done()
			errs[i] = step(k)
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (r *replay) errors() (n int64) {
	for _, k := range r.ranks {
		n += k.errors
	}
	return n
}
