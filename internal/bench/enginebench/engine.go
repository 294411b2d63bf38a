package enginebench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

// engine is one instance of a model over a store.
type engine struct {
	subject *Subject
	store   *kvstore.Store
	hash    func(tokens []uint32) []kvstore.Key
	pool    *pool
	layers  bool    // compute a layer when it has landed, not when all have
	fast    float64 // how many times faster than the wall clock its time runs
	lost    *losses

	// Requests are looked up, loaded and computed in the same order.
	looking, loading, computing line
	gpu                         gpu
}

// request is a prompt in an engine.
type request struct {
	tokens   []uint32
	arrival  time.Time
	together int // how many came together
	bufs     [][]byte
	// Its places in the engine's queues.
	looks, loads, computes *place

	keys      []kvstore.Key
	filledTo  int  // the blocks from here on have their content already
	abandoned bool // the store may still use the buffers
	out       outcome
}

// outcome is what was measured of a request, in wall-clock time.
type outcome struct {
	arrival   time.Time
	done      time.Time // when its first token was computed
	tokens    int
	hitTokens int
	together  int

	hash, lookup time.Duration
	firstLayer   time.Duration // from the call of Load until the first layer had landed
	stalled      time.Duration // the GPU waited for bytes
	loadBegan    time.Time
	loadEnded    time.Time
	loadedBytes  int64
	lostBlocks   int           // found, but not loaded
	save         time.Duration // until the store had accepted the new blocks
	savedBytes   int64
	failedSaves  int // shards
}

// admit begins a request. Requests are computed in the order in which they are
// admitted, by one goroutine.
func (e *engine) admit(ctx context.Context, tokens []uint32, together int) (*request, error) {
	bufs, err := e.pool.take(ctx, e.subject.blocks(len(tokens)))
	if err != nil {
		return nil, err
	}
	return &request{
		tokens: tokens, together: together, bufs: bufs, filledTo: len(bufs),
		looks: e.looking.join(), loads: e.loading.join(), computes: e.computing.join(),
	}, nil
}

// leave removes the request from all queues.
func (r *request) leave() {
	r.looks.done()
	r.loads.done()
	r.computes.done()
}

// serve computes the first token of a request. This is what is measured.
func (e *engine) serve(ctx context.Context, r *request) error {
	defer r.leave()
	r.out = outcome{arrival: r.arrival, tokens: len(r.tokens), together: r.together}

	if err := r.looks.wait(ctx); err != nil {
		return err
	}
	began := time.Now()
	r.keys = e.hash(r.tokens)
	hashed := time.Now()
	r.out.hash = hashed.Sub(began)
	hits, err := e.store.LookupPrefix(ctx, r.keys)
	r.looks.done()
	if err != nil && ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("bench: lookup: %w", err)
	}
	known := time.Now()
	r.out.lookup = known.Sub(hashed)

	// Without a hit there is nothing to wait for.
	landed := slices.Repeat([]time.Time{known}, e.subject.profile.Model.Layers)
	if hits, err = e.load(ctx, r, hits, landed); err != nil {
		return err
	}
	r.out.hitTokens = hits * e.subject.blockTokens
	each := e.wall(e.subject.compute(r.out.hitTokens, len(r.tokens), r.together)) / time.Duration(len(landed))
	if err := r.computes.wait(ctx); err != nil {
		return err
	}
	end, stalled := e.gpu.run(known, landed, each)
	r.computes.done()
	r.out.stalled = stalled
	if err := sleepUntil(ctx, end); err != nil {
		return err
	}
	r.out.done = time.Now()
	return nil
}

// load loads the leading blocks that were found, when it is the request's turn, and sets
// when each layer landed. It returns when all layers have landed. The result is the
// number of loaded blocks, which is smaller than hits if the store lost some.
func (e *engine) load(ctx context.Context, r *request, hits int, landed []time.Time) (int, error) {
	if err := r.loads.wait(ctx); err != nil {
		return 0, err
	}
	if hits == 0 {
		r.loads.done()
		return 0, nil
	}
	r.out.loadBegan = time.Now()
	var (
		batches = e.batches(r, hits)
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
	whole, layer := hits, 0
	var failed []error
	for task := range begun {
		// Do not also wait for ctx: the task ends with it, and the buffers are in use until
		// then.
		for range task.Len() / hits {
			<-task.Landed(layer)
			landed[layer] = time.Now()
			layer++
		}
		<-task.Done()
		if task.Err() != nil {
			failed = append(failed, failuresOf(task)...)
			whole = min(whole, wholeBlocks(task, r.keys[:whole]))
			r.abandoned = r.abandoned || abandonedAny(task)
		}
	}
	r.out.loadEnded = time.Now()
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	if refused != nil {
		return 0, fmt.Errorf("bench: load: %w", refused)
	}
	r.out.firstLayer = landed[0].Sub(r.out.loadBegan)
	r.out.lostBlocks = hits - whole
	e.lost.loads(r.out.lostBlocks, failed)
	r.out.loadedBytes = int64(whole) * e.subject.layout.BlockBytes
	if !e.layers || whole < hits {
		// The layers computed so far assumed a prefix that is missing.
		for i := range landed {
			landed[i] = r.out.loadEnded
		}
	}
	return whole, nil
}

// shardsPerBatch is about how many shards of a load are in a batch. The store has two
// batches at a time, which keeps it busy. More shards would only delay layers that are
// needed sooner: Load may wait until there is space for a whole batch, and until it
// returns no layer can be seen to have landed.
const shardsPerBatch = 256

// batches returns the shards of a load: layer by layer, or all at once.
func (e *engine) batches(r *request, hits int) (all [][]kvstore.Shard) {
	l := e.subject.layout
	if !e.layers {
		return [][]kvstore.Shard{l.ByBlock(r.keys[:hits], r.bufs)}
	}
	shards := l.ByLayer(r.keys[:hits], r.bufs)
	return slices.Collect(slices.Chunk(shards, max(shardsPerBatch/hits, 1)*hits))
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
	hits := r.out.hitTokens / e.subject.blockTokens
	e.fill(r, hits)
	if hits == len(r.keys) {
		return nil
	}
	began := time.Now()
	task, err := e.store.Save(ctx, e.subject.layout.ByBlock(r.keys[hits:], r.bufs[hits:]))
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("bench: save: %w", err)
	}
	<-task.Done() // ctx ends it, too
	r.out.save = time.Since(began)
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
	hits := r.out.hitTokens / e.subject.blockTokens
	return checkBlocks(r.bufs, r.keys[:hits], e.subject.layout)
}

// release returns the request's memory to the pool and clears it, so that its content
// cannot be mistaken for a block that is loaded there next.
func (e *engine) release(r *request) {
	if !r.abandoned {
		for _, buf := range r.bufs {
			clear(buf)
		}
	}
	e.pool.put(r.bufs, r.abandoned)
}

// wall converts a duration of a real engine to wall-clock time.
func (e *engine) wall(d time.Duration) time.Duration { return time.Duration(float64(d) / e.fast) }
