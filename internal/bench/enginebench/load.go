package enginebench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

// load loads the blocks that were found after those in the engine's memory, when it is the
// request's turn. It sets when each layer landed, and closes known when the first one has.
// The result is how many blocks were loaded, which is less than found if the store lost
// some.
func (e *engine) load(ctx context.Context, r *request, found int) (int, error) {
	if err := r.loads.wait(ctx); err != nil {
		return 0, err
	}
	keys := r.keys[r.inMemory:r.hits]
	began := time.Now()
	r.out.loadBegan = e.at(began)
	var (
		batches = e.batches(keys, r.bufs[r.inMemory:r.hits])
		begun   = make(chan *kvstore.Task, len(batches)) // in the order of batches
		refused error                                    // read after begun is closed
	)
	go func() {
		defer close(begun)
		defer r.loads.done()
		var tasks []*kvstore.Task
		for i, shards := range batches {
			switch {
			case i == 1: // nothing hides the first layer
				<-tasks[0].Landed(0)
			case i > 1:
				<-tasks[i-2].Done()
			}
			task, err := e.store.Load(ctx, shards)
			if err != nil {
				refused = err
				return
			}
			tasks = append(tasks, task)
			begun <- task
		}
	}()
	whole := found
	var landed []time.Duration
	var failed []error
	for task := range begun {
		// Do not also wait for ctx: the task ends with it, and the buffers are in use until
		// then.
		if !e.whole {
			for range task.Len() / found {
				<-task.Landed(len(landed))
				landed = append(landed, e.now())
				if len(landed) == 1 {
					r.ready = landed[0]
					close(r.known)
				}
			}
		}
		<-task.Done()
		if task.Err() != nil {
			failed = append(failed, failuresOf(task)...)
			whole = min(whole, wholeBlocks(task, keys[:whole]))
			r.abandoned = r.abandoned || abandonedAny(task)
		}
	}
	r.out.loadEnded = e.now()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if refused != nil {
		return 0, fmt.Errorf("bench: load: %w", refused)
	}
	if e.whole || whole < found {
		// The layers computed so far assumed a prefix that is missing.
		landed = slices.Repeat([]time.Duration{r.out.loadEnded}, e.gpus.layers)
	}
	if e.whole {
		r.ready = r.out.loadEnded
		close(r.known)
	}
	r.landed = landed
	r.out.firstLayer = landed[0] - r.out.loadBegan
	r.out.lostBlocks = found - whole
	e.lost.loads(r.out.lostBlocks, failed)
	r.out.loadedBytes = int64(whole) * e.subject.layout.BlockBytes
	return whole, nil
}

// shardsPerBatch is about how many shards of a load are in a batch. The store has two
// batches at a time, which keeps it busy. More shards would only delay layers that are
// needed sooner: Load may wait until there is space for a whole batch, and until it
// returns no layer can be seen to have landed.
const shardsPerBatch = 256

// batches returns the shards of a load: layer by layer, or all at once.
func (e *engine) batches(keys []kvstore.Key, bufs [][]byte) (all [][]kvstore.Shard) {
	l := e.subject.layout
	if e.whole {
		return [][]kvstore.Shard{l.ByBlock(keys, bufs)}
	}
	return slices.Collect(slices.Chunk(l.ByLayer(keys, bufs), max(shardsPerBatch/len(keys), 1)*len(keys)))
}

// wholeBlocks returns how many of the leading blocks have no failed shard in the batch.
func wholeBlocks(task *kvstore.Task, keys []kvstore.Key) int {
	bad := map[kvstore.Key]bool{}
	for i := range task.Len() {
		if err, _ := task.Result(i); err != nil {
			bad[task.Shard(i).Key] = true
		}
	}
	for n, key := range keys {
		if bad[key] {
			return n
		}
	}
	return len(keys)
}

// failuresOf returns the errors of the shards of a task that has ended.
func failuresOf(task *kvstore.Task) (all []error) {
	for i := range task.Len() {
		if err, _ := task.Result(i); err != nil {
			all = append(all, err)
		}
	}
	return all
}

// abandonedAny reports whether the store may still use a buffer of the batch.
func abandonedAny(task *kvstore.Task) bool {
	for i := range task.Len() {
		if err, _ := task.Result(i); errors.Is(err, kvstore.ErrAbandoned) {
			return true
		}
	}
	return false
}

// fill writes the content of the blocks from the first-th on. It is not measured, because
// the simulated GPU has already taken the time.
func (e *engine) fill(r *request, first int) {
	for b := first; b < r.filledTo; b++ {
		fillBlock(r.bufs[b], r.keys[b], e.subject.layout)
	}
	r.filledTo = min(r.filledTo, first)
}

// save saves the new blocks as soon as they are computed.
func (e *engine) save(ctx context.Context, r *request) error {
	e.fill(r, r.hits)
	if r.hits == len(r.keys) {
		return nil
	}
	began := time.Now()
	task, err := e.store.Save(ctx, e.subject.layout.ByBlock(r.keys[r.hits:], r.bufs[r.hits:]))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("bench: save: %w", err)
	}
	<-task.Done() // ctx ends it, too
	r.out.save = e.span(time.Since(began))
	r.abandoned = r.abandoned || abandonedAny(task)
	if err := ctx.Err(); err != nil {
		return err
	}
	failed := failuresOf(task)
	r.out.failedSaves = len(failed)
	r.out.savedBytes = int64(task.Len()-len(failed)) * e.subject.layout.ShardBytes
	e.lost.saves(failed)
	return nil
}

// verify checks the loaded blocks.
func (e *engine) verify(r *request) error {
	return checkBlocks(r.bufs[r.inMemory:r.hits], r.keys[r.inMemory:r.hits], e.subject.layout)
}

// release returns the request's memory to the pool and clears it, so that its content
// cannot be mistaken for a block that is loaded there next. Nothing uses the memory any
// more. A second call does nothing.
func (e *engine) release(r *request) {
	if !r.abandoned {
		for _, buf := range r.bufs {
			clear(buf)
		}
	}
	e.pool.put(r.bufs, r.abandoned)
	r.bufs = nil
}
