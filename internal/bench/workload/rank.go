package workload

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/usrbio"
)

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
		for slot, id := range ids[:n] {
			contentOf(id, k.n).Spoil(k.window(slot)) // the block may have been written from here
		}
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
		w.Kept = keep(b.path)
		k.wrong = append(k.wrong, w)
		k.r.o.Notice(w.String())
	}
	return false
}

// keep renames a wrong block, which is about to be written again, so that it can be looked
// at. It returns the new name, or nothing if it cannot.
func keep(path string) string {
	for n := range 100 {
		kept := fmt.Sprintf("%s.wrong-%d", path, n+1)
		switch err := unix.Renameat2(unix.AT_FDCWD, path, unix.AT_FDCWD, kept, unix.RENAME_NOREPLACE); err {
		case nil:
			return kept
		case unix.EEXIST:
		default:
			return ""
		}
	}
	return ""
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
