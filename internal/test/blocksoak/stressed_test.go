package blocksoak

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/kv3fs/kv3fs/internal/bench/workload"
	"github.com/kv3fs/kv3fs/kvstore"
)

const (
	stressBatch   = 32 // blocks
	stressThreads = 2
	stressKill    = 100 // steps before a process kills itself, on average

	variants     = 3        // of each block: processes compute it with different results
	otherVariant = variants // that another model has saved: no chain may load it
)

// damageOrder is what a process of the stress is to do.
type damageOrder struct {
	Opening     opening
	Places      places
	Seed        uint64
	Variant     int // of the blocks that it saves
	Data, Index int // how many bytes to flip
}

// report is what processes have done and seen.
type report struct {
	Data, Index, Ruined      int   // flips, and larger damage
	Loaded, Missed, Saved    int   // shards
	Mixed                    int   // shards of another variant than the rest of their block
	Corrupt, Unverified      int64 // blocks, shards
	Deleted, Opened, Refused int
	Failed                   int // calls, because of files that were being removed
	Killed                   int // processes
}

// unlessRemoved counts an error that says that a file, such as the log of checksums that was
// about to be written, is not there: another process has just removed it. A process that
// shares a Cache with the one that met it is told only that the other could not write; why,
// the other one says.
func (r *report) unlessRemoved(err error) error {
	if err == nil {
		return nil
	}
	elsewhere := strings.Contains(err.Error(), "another process could not write it")
	if elsewhere || errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESTALE) {
		r.Failed++
		return nil
	}
	return err
}

func (r *report) add(x report) {
	r.Data, r.Index, r.Ruined = r.Data+x.Data, r.Index+x.Index, r.Ruined+x.Ruined
	r.Loaded, r.Missed, r.Saved = r.Loaded+x.Loaded, r.Missed+x.Missed, r.Saved+x.Saved
	r.Mixed, r.Failed = r.Mixed+x.Mixed, r.Failed+x.Failed
	r.Corrupt, r.Unverified = r.Corrupt+x.Corrupt, r.Unverified+x.Unverified
	r.Deleted, r.Opened, r.Refused = r.Deleted+x.Deleted, r.Opened+x.Opened, r.Refused+x.Refused
	r.Killed += x.Killed
}

// count adds what the stores of a chain have found.
func (r *report) count(s kvstore.Stats) {
	r.Corrupt += s.CorruptBlocks
	r.Unverified += s.UnverifiedShards
	if s.Next != nil {
		r.count(*s.Next)
	}
}

// variantOf is the content of a shard as one of the processes has computed it.
func variantOf(n, shard, variant int) workload.Pattern {
	return workload.PatternOf(uint64(n), uint64(shard), uint64(variant))
}

// batchOf returns the shards of blocks from the first on, with fresh buffers.
func (o opening) batchOf(first int) []kvstore.Shard {
	var all []kvstore.Shard
	for i := range stressBatch {
		all = append(all, o.shards((first+i)%stressBlocks)...)
	}
	return all
}

// blockOf returns the number of the block that the i-th shard of a batch belongs to.
func (o opening) blockOf(first, i int) int {
	return (first + i/o.Config.Layout.Shards()) % stressBlocks
}

// saveVariant saves blocks from the first on.
func (c chain) saveVariant(ctx context.Context, first, variant int) error {
	batch := c.batchOf(first)
	for i, shard := range batch {
		variantOf(c.blockOf(first, i), shard.Index, variant).Fill(shard.Buf)
	}
	task, err := c.Save(ctx, batch)
	if err == nil {
		err = task.Wait(ctx)
	}
	if err != nil {
		return fmt.Errorf("save: %w", err)
	}
	return nil
}

// loadVariants loads blocks from the first on. What it gets of a shard must be one of its
// variants.
func (c chain) loadVariants(ctx context.Context, first int, r *report) error {
	batch := c.batchOf(first)
	for i, shard := range batch {
		variantOf(c.blockOf(first, i), shard.Index, otherVariant).Fill(shard.Buf) // what a load leaves out is wrong
	}
	task, err := c.Load(ctx, batch)
	if err != nil {
		return fmt.Errorf("load: %w", err)
	}
	possible := make([]uint, stressBatch) // variants of each block, a bit each
	for i := range possible {
		possible[i] = 1<<variants - 1
	}
	for i, err := range task.All() {
		if errors.Is(err, kvstore.ErrMiss) {
			r.Missed++
			continue
		}
		if err != nil {
			return fmt.Errorf("load: %w", err)
		}
		r.Loaded++
		n, is := c.blockOf(first, i), &possible[i/c.Config.Layout.Shards()]
		var of uint
		for v := range variants {
			if bad, _ := variantOf(n, batch[i].Index, v).Check(batch[i].Buf); bad == 0 {
				of |= 1 << v
			}
		}
		if of == 0 {
			return fmt.Errorf("block %d has wrong bytes in shard %d", n, batch[i].Index)
		}
		if *is &= of; *is == 0 {
			r.Mixed++
			*is = of
		}
	}
	return nil
}

// stressed is a process of the stress.
type stressed struct {
	damageOrder
	mu    sync.RWMutex // held for writing while the store is opened again
	chain chain        // its Store is nil after it could not be opened

	data, index atomic.Int64 // flips to do

	reports sync.Mutex
	sum     report // of all steps that have ended
}

// stress does what the order says, and prints a report. Now and then it ends by killing
// itself, and its report says so.
func stress(in *json.Decoder) error {
	var p stressed
	if err := in.Decode(&p.damageOrder); err != nil {
		return err
	}
	p.data.Store(int64(p.Data))
	p.index.Store(int64(p.Index))
	var err error
	if p.chain, err = p.Places.open(p.Opening, &p.sum); err != nil {
		return err
	}
	var (
		threads sync.WaitGroup
		failed  = make([]error, stressThreads)
	)
	for i := range stressThreads {
		rng := rand.New(rand.NewPCG(p.Seed, uint64(i)))
		v := &vandal{places: p.Places, opening: p.Opening, rng: rng}
		threads.Go(func() {
			for (p.data.Load() > 0 || p.index.Load() > 0) && failed[i] == nil {
				var r report
				failed[i] = r.unlessRemoved(p.step(rng, v, &r))
				p.add(r)
			}
		})
	}
	threads.Wait()
	failed = append(failed, p.sum.unlessRemoved(p.end(&p.sum)))
	if err := errors.Join(failed...); err != nil {
		return fmt.Errorf("%w; %+v", err, p.sum)
	}
	return json.NewEncoder(os.Stdout).Encode(p.sum)
}

func (p *stressed) add(r report) {
	p.reports.Lock()
	defer p.reports.Unlock()
	p.sum.add(r)
}

// die kills the process, in the middle of what its other threads and the store are doing.
func (p *stressed) die() error {
	p.reports.Lock()
	defer p.reports.Unlock()
	p.sum.Killed++
	if err := p.found(&p.sum); err != nil {
		return err
	}
	if err := json.NewEncoder(os.Stdout).Encode(p.sum); err != nil {
		return err
	}
	return unix.Kill(os.Getpid(), unix.SIGKILL)
}

// step does one thing at random.
func (p *stressed) step(rng *rand.Rand, v *vandal, r *report) error {
	what := rng.IntN(1000)
	if what < 10 {
		return p.reopen(v, r)
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.chain.Store == nil {
		return errors.New("another thread has not opened the store again")
	}
	if rng.IntN(stressKill) == 0 {
		return p.die()
	}
	ctx, first := context.Background(), rng.IntN(stressBlocks)
	switch {
	case what < 350:
		return p.chain.loadVariants(ctx, first, r)
	case what < 650:
		if err := p.chain.saveVariant(ctx, first, p.Variant); err != nil {
			return err
		}
		r.Saved += stressBatch * p.Places.Layout.Shards()
		if what < 450 {
			return p.chain.Flush(ctx)
		}
	case what < 680:
		r.Deleted += 3
		var some []kvstore.Key
		for i := range 3 {
			some = append(some, p.chain.key((first+i)%stressBlocks))
		}
		return p.chain.Delete(ctx, some)
	case what < 780:
		if p.data.Load() > 0 {
			n, err := v.flipData()
			p.data.Add(-int64(n))
			r.Data += n
			return err
		}
	case what < 970:
		if p.index.Load() > 0 {
			n, err := v.flipIndex()
			p.index.Add(-int64(n))
			r.Index += n
			return err
		}
	default:
		r.Ruined++
		return v.ruin()
	}
	return nil
}

// end closes the store and counts what it has found.
func (p *stressed) end(r *report) error {
	if p.chain.Store == nil {
		return nil
	}
	if err := p.found(r); err != nil {
		return err
	}
	return p.chain.Close()
}

// found counts what the store has found.
func (p *stressed) found(r *report) error {
	if r.count(p.chain.Stats()); r.Unverified > 0 {
		return fmt.Errorf("%d shards were loaded unverified", r.Unverified)
	}
	return nil
}

// reopen damages the files while the store is closed, too.
func (p *stressed) reopen(v *vandal, r *report) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := r.unlessRemoved(p.end(r)); err != nil {
		return err
	}
	p.chain.Store = nil
	r.Ruined++
	if err := v.ruin(); err != nil {
		return err
	}
	var err error
	if p.chain, err = p.Places.open(p.Opening, r); err != nil {
		return fmt.Errorf("open again: %w", err)
	}
	return nil
}
