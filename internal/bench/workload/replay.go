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

	"github.com/kv3fs/kv3fs/internal/bench/measure"
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
		o: o, dir: filepath.Join(o.Mount, o.Dir), left: o.MaxBlocks,
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
	if o.MaxBlocks == 0 {
		blocks, free, err := blocksThatFit(r.dir, o.BlockBytes, o.Ranks)
		if err != nil {
			return nil, err
		}
		if blocks == 0 {
			return nil, fmt.Errorf("%s has %s free, too little for one block of %s on %d ranks; make room, or choose smaller blocks or --max-blocks",
				o.Mount, measure.SizeText(free), measure.SizeText(o.BlockBytes), o.Ranks)
		}
		r.left = blocks
		o.Notice(fmt.Sprintf("at most %s blocks will be written: half of the %s free at %s (--max-blocks changes it)", countText(blocks), measure.SizeText(free), o.Mount))
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

// rank is one participant. Its methods run on its own goroutine, except newRank and stop;
// other goroutines may read its fields between steps.
type rank struct {
	n     int
	r     *replay
	steps chan func()
	ended chan struct{}

	iov    *usrbio.Iov
	reads  *usrbio.Ring
	writes *usrbio.Ring
	blocks []inFlight // one for each slot of the iov
	dst    []usrbio.Completion
	shards [256]bool // directories known to exist

	// Results of the latest step.
	run  int           // leading blocks found, loaded or stored
	took time.Duration // time spent on I/O; filling and checking memory is not in it
	full bool          // no space left

	blockLoad, blockStore *latencies
	loaded, stored        int64 // blocks
	vanished              int64
	errors                int64
	wrongBlocks           int64
	wrongBytes            int64
	wrong                 []WrongBlock // the first few
	serial                uint64       // of temporary names
}

// inFlight is a block in a slot of the iov.
type inFlight struct {
	id     uint64
	path   string
	temp   string // while it is being written
	file   *usrbio.File
	began  time.Time
	result int64 // of its completion
	ok     bool
}

func newRank(ctx context.Context, r *replay, n int) (*rank, error) {
	k := &rank{
		n: n, r: r, steps: make(chan func()), ended: make(chan struct{}),
		blocks:    make([]inFlight, r.o.Depth),
		dst:       make([]usrbio.Completion, r.o.Depth),
		blockLoad: newLatencies(), blockStore: newLatencies(),
	}
	var err error
	// Reserve: a full /dev/shm is an error now and not a fault later.
	if k.iov, err = r.mount.NewIov(ctx, r.o.BlockBytes*int64(r.o.Depth), usrbio.IovOptions{Reserve: true}); err != nil {
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w; enlarge /dev/shm, or choose fewer ranks, a smaller --depth or smaller blocks", err)
		}
		return nil, err
	}
	if err = k.iov.Unlink(); err != nil { // if killed, no memory is left behind
		return nil, err
	}
	if k.reads, err = r.mount.NewRing(ctx, usrbio.RingOptions{Entries: r.o.Depth}); err != nil {
		return nil, err
	}
	if k.writes, err = r.mount.NewRing(ctx, usrbio.RingOptions{Entries: r.o.Depth, Write: true}); err != nil {
		return nil, err
	}
	go func() {
		defer close(k.ended)
		for step := range k.steps {
			step()
		}
	}()
	return k, nil
}

func (k *rank) stop() {
	close(k.steps)
	<-k.ended
}

func (k *rank) window(slot int) []byte {
	size := k.r.o.BlockBytes
	return k.iov.Bytes()[int64(slot)*size : int64(slot+1)*size]
}

func (k *rank) path(id uint64) string {
	return k.r.dir + "/" + blockPath(id, k.n, k.r.o.BlockBytes)
}

// lookup finds the leading run of blocks that exist.
func (k *rank) lookup(ids []uint64) error {
	k.run = 0
	for _, id := range ids {
		var st unix.Stat_t
		if err := unix.Stat(k.path(id), &st); err != nil {
			if err != unix.ENOENT {
				return k.ioError("look up", k.path(id), err)
			}
			return nil
		}
		k.run++
	}
	return nil
}

// load loads blocks that were found, as many at a time as the iov holds, and checks them.
// run is the number of leading ones that are right.
func (k *rank) load(ctx context.Context, ids []uint64) error {
	k.run, k.took = 0, 0
	leading := true
	for len(ids) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(len(ids), len(k.blocks))
		began := time.Now()
		err := k.batch(ctx, k.reads, ids[:n], k.openBlock, nil, k.blockLoad)
		k.took += time.Since(began)
		if err != nil {
			return err
		}
		for slot := range k.blocks[:n] {
			leading = k.check(slot) && leading
			if leading {
				k.run++
			}
		}
		ids = ids[n:]
	}
	return nil
}

// store writes blocks, as many at a time as the iov holds. run is the number of leading
// ones that got their name.
func (k *rank) store(ctx context.Context, ids []uint64) error {
	k.run, k.took = 0, 0
	leading := true
	for len(ids) > 0 && !k.full {
		if err := ctx.Err(); err != nil {
			return err
		}
		n := min(len(ids), len(k.blocks))
		for slot, id := range ids[:n] {
			contentOf(id, k.n).Fill(k.window(slot))
		}
		began := time.Now()
		err := k.batch(ctx, k.writes, ids[:n], k.createTemp, k.name, k.blockStore)
		k.took += time.Since(began)
		if err != nil {
			return err
		}
		for slot := range k.blocks[:n] {
			leading = leading && k.blocks[slot].ok
			if leading {
				k.run++
			}
		}
		ids = ids[n:]
	}
	return nil
}

// batch moves ids, one in each slot of the iov, between their files and the iov.
// open prepares a block's file. finish, if not nil, completes a block whose data is there,
// with the file still open, as engines do. An error ends the replay; failures of single
// blocks are in k.blocks and counted.
func (k *rank) batch(interrupt context.Context, ring *usrbio.Ring, ids []uint64, open func(*inFlight) (*os.File, error), finish func(*inFlight) error, hist *latencies) error {
	// After an interrupt, too, what is in flight is collected, but not for long, so that no
	// temporary file is left behind.
	ctx, cancel := context.WithCancel(context.WithoutCancel(interrupt))
	defer cancel()
	defer context.AfterFunc(interrupt, func() { time.AfterFunc(interruptLimit, cancel) })()
	pending := 0
	collect := func(atLeast int) error {
		n, err := waitFor(ctx, ring, k.dst, atLeast, k.r.o.WaitLimit)
		for _, c := range k.dst[:n] {
			pending--
			b := &k.blocks[c.Userdata]
			b.result = c.Result
			b.ok = c.Result == k.r.o.BlockBytes
			if b.ok && finish != nil {
				if err := finish(b); err != nil {
					return err
				}
			}
			hist.record(time.Since(b.began))
			if err := k.closeBlock(ctx, b); err != nil {
				return err
			}
		}
		return k.explainWait(err)
	}
	for slot, id := range ids {
		b := &k.blocks[slot]
		*b = inFlight{id: id, path: k.path(id), began: time.Now()}
		f, err := open(b)
		if err != nil {
			return err
		}
		if f == nil { // counted by open
			continue
		}
		if b.file, err = k.r.mount.Register(ctx, f); err == nil {
			_, err = ring.Prepare(usrbio.Request{
				File: b.file,
				Iov:  k.iov, IovOffset: int64(slot) * k.r.o.BlockBytes,
				Bytes: k.r.o.BlockBytes, Userdata: uint64(slot),
			})
		}
		f.Close() // the registration has its own descriptor
		if err != nil {
			return fmt.Errorf("rank %d: %s: %w", k.n, b.path, err)
		}
		pending++
		if err := ring.Submit(); err != nil {
			return err
		}
		if err := collect(0); err != nil {
			return err
		}
	}
	for pending > 0 {
		if err := collect(1); err != nil {
			return err
		}
	}
	return nil
}

// waitFor waits for a completion if atLeast is 1, and no longer than limit. The limit is
// for one completion and not for all that are in flight.
func waitFor(ctx context.Context, ring waiter, dst []usrbio.Completion, atLeast int, limit time.Duration) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return ring.Wait(ctx, dst, atLeast)
}

type waiter interface {
	Wait(ctx context.Context, dst []usrbio.Completion, atLeast int) (int, error)
}

// explainWait explains the error of a wait.
func (k *rank) explainWait(err error) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("rank %d: no completion within %v: the daemon at %s hangs; look at what `kv3fs serve` printed there", k.n, k.r.o.WaitLimit, k.r.o.Mount)
	case err != nil:
		return fmt.Errorf("rank %d: waiting for completions: %w", k.n, err)
	}
	return nil
}

// openBlock opens a block to load. One that was evicted after it was looked up
// is a miss, not an error.
func (k *rank) openBlock(b *inFlight) (*os.File, error) {
	f, err := os.Open(b.path)
	switch {
	case err == nil:
		return f, nil
	case errors.Is(err, unix.ENOENT):
		k.vanished++
		return nil, nil
	}
	return nil, k.ioError("open", b.path, err)
}

// check judges the block in a slot after a load.
func (k *rank) check(slot int) (ok bool) {
	b := &k.blocks[slot]
	size := k.r.o.BlockBytes
	switch {
	case b.file == nil:
		return false // counted by openBlock
	case b.result < 0:
		k.countError("read", b.path, unix.Errno(-b.result))
		return false
	}
	got := k.window(slot)[:b.result]
	wrong, first := contentOf(b.id, k.n).Check(got)
	if b.result < size {
		wrong += int(size - b.result)
		if first < 0 {
			first = int(b.result)
		}
	}
	if wrong == 0 {
		k.loaded++
		return true
	}
	k.wrongBlocks++
	k.wrongBytes += int64(wrong)
	if len(k.wrong) < maxWrong {
		w := describeWrong(b, k.n, got, wrong, first, size)
		k.wrong = append(k.wrong, w)
		k.r.o.Notice(w.String())
	}
	return false
}

// createTemp creates the file that a block is written to.
func (k *rank) createTemp(b *inFlight) (*os.File, error) {
	if k.full {
		return nil, nil
	}
	k.serial++
	b.temp = fmt.Sprintf("%s/%d-%d", k.r.temps, k.n, k.serial)
	f, err := os.OpenFile(b.temp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		temp := b.temp
		b.temp = ""
		if k.noSpace(err) {
			return nil, nil
		}
		return nil, k.ioError("create", temp, err)
	}
	return f, nil
}

// name renames a complete block to its name.
func (k *rank) name(b *inFlight) error {
	b.ok = false
	shard := byte(b.id)
	var err error
	for range 2 {
		if !k.shards[shard] {
			if err = os.Mkdir(filepath.Dir(b.path), 0o755); err != nil && !errors.Is(err, unix.EEXIST) {
				break
			}
			k.shards[shard] = true
		}
		if err = os.Rename(b.temp, b.path); !errors.Is(err, unix.ENOENT) {
			break
		}
		k.shards[shard] = false // the empty directory has been removed
	}
	switch {
	case err == nil:
		b.temp, b.ok = "", true
		k.stored++
		return nil
	case k.noSpace(err):
		return nil
	}
	return k.ioError("name", b.path, err)
}

// closeBlock ends a block's registration and removes its temporary file, unless that has
// become the block.
func (k *rank) closeBlock(ctx context.Context, b *inFlight) error {
	err := b.file.Close(ctx)
	if b.temp == "" {
		return err
	}
	switch {
	case b.result == k.r.o.BlockBytes: // counted by name
	case b.result < 0 && k.noSpace(unix.Errno(-b.result)):
	case b.result < 0:
		k.countError("write", b.path, unix.Errno(-b.result))
	default:
		k.countError("write", b.path, fmt.Errorf("%d of %d bytes written", b.result, k.r.o.BlockBytes))
	}
	if e := unix.Unlink(b.temp); e != nil && e != unix.ENOENT {
		return errors.Join(err, k.ioError("remove", b.temp, e))
	}
	return err
}

// noSpace reports whether err means that the disk is full, and notes it.
func (k *rank) noSpace(err error) bool {
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		k.full = true
		return true
	}
	return false
}

// countError counts an I/O error and reports the first few.
func (k *rank) countError(what, path string, err error) {
	k.errors++
	if k.errors <= maxWrong {
		k.r.o.Notice(fmt.Sprintf("rank %d: %s %s: %v", k.n, what, path, err))
	}
}

// ioError is countError for errors of system calls. It returns those that every later call
// would meet, too.
func (k *rank) ioError(what, path string, err error) error {
	if errors.Is(err, unix.ENOTCONN) || errors.Is(err, unix.ECONNABORTED) {
		return fmt.Errorf("rank %d: %s %s: the daemon at %s is gone: %w", k.n, what, path, k.r.o.Mount, err)
	}
	k.countError(what, path, err)
	return nil
}
