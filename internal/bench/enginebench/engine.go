package enginebench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore"
)

// engine is one instance of a model over a store.
type engine struct {
	subject *Subject
	store   *kvstore.Store
	hash    func(tokens []uint32) []kvstore.Key
	pool    *pool
	whole   bool    // compute a prompt when all of it has landed, not layer by layer
	fast    float64 // how many times faster than the wall clock its time runs
	lost    *losses
	began   time.Time // when its time began

	mu     sync.Mutex
	memory *engineMemory // nil: without a prefix cache of its own
	past   *history

	arrivals chan *request
	loading  line // loads begin in the order of the requests

	// Of work only.
	gpus    gpus
	waiting []*request // not scheduled yet, in the order of their arrival
	ahead   *request   // scheduled, but no pass has computed a part of it; nil: none
}

// request is a prompt in an engine.
type request struct {
	job
	arrival  time.Duration
	text     []uint32
	bufs     [][]byte
	finished func(time.Duration) // called at its last token; may be nil

	keys      []kvstore.Key
	hits      int  // leading blocks that need not be computed: in memory or loaded
	filledTo  int  // the blocks from here on have their content already
	abandoned bool // the store may still use the buffers

	loads    *place
	known    chan struct{} // closed when its first layer has landed, or when nothing is to be loaded
	loaded   chan struct{} // closed when its load has ended
	computed chan struct{} // closed at its first token
	out      outcome
}

// outcome is what was measured of a request, in the engine's time.
type outcome struct {
	arrival  time.Duration
	tokens   []time.Duration // when each output token was there
	prompt   int
	output   int
	together int
	keys     []kvstore.Key // of its whole blocks

	memoryBlocks   int // in the engine's own memory
	hitBlocks      int // loaded from the store
	lostBlocks     int // found in the store, but not loaded
	earlierBlocks  int // leading blocks that earlier requests had, too
	computedBlocks int // of these, those that were computed when this request was looked up

	hash, lookup time.Duration
	firstLayer   time.Duration // from the call of Load until the first layer had landed
	stalled      time.Duration // the GPUs waited for bytes
	loadBegan    time.Duration
	loadEnded    time.Duration
	loadedBytes  int64
	save         time.Duration // until the store had accepted the new blocks
	savedBytes   int64
	failedSaves  int // shards
}

// first returns when the first token was there.
func (o outcome) first() time.Duration { return o.tokens[0] }

// last returns when the last token was there.
func (o outcome) last() time.Duration { return o.tokens[len(o.tokens)-1] }

// now returns the engine's time.
func (e *engine) now() time.Duration { return e.at(time.Now()) }

// at converts wall-clock time to the engine's.
func (e *engine) at(wall time.Time) time.Duration { return e.span(wall.Sub(e.began)) }

// span converts a wall-clock duration to the engine's.
func (e *engine) span(wall time.Duration) time.Duration {
	return time.Duration(float64(wall) * e.fast)
}

// wall converts the engine's time to wall-clock time.
func (e *engine) wall(at time.Duration) time.Time {
	return e.began.Add(time.Duration(float64(at) / e.fast))
}

// admit takes the memory of a request. One goroutine admits all requests, in the order in
// which they arrive.
func (e *engine) admit(ctx context.Context, text []uint32, output, together int) (*request, error) {
	bufs, err := e.pool.take(ctx, e.subject.blocks(len(text)))
	if err != nil {
		return nil, err
	}
	r := &request{
		job: job{prompt: len(text), output: output, together: together}, text: text, bufs: bufs, filledTo: len(bufs),
		known: make(chan struct{}), loaded: make(chan struct{}), computed: make(chan struct{}),
	}
	r.of = r
	return r, nil
}

// arrive hands a request to work.
func (e *engine) arrive(ctx context.Context, r *request) {
	select {
	case e.arrivals <- r:
	case <-ctx.Done():
	}
}

// work schedules the requests that arrive and runs the GPUs until ctx ends, or until a
// request fails, with fail. It returns after all its goroutines have ended.
func (e *engine) work(ctx context.Context, fail func(error)) {
	var fetches sync.WaitGroup
	defer fetches.Wait()
	// A request is looked up when the one before it begins to compute, so that its load
	// overlaps this computation.
	schedule := func() {
		if e.ahead != nil || len(e.waiting) == 0 {
			return
		}
		r := e.waiting[0]
		e.waiting, e.ahead = e.waiting[1:], r
		e.gpus.prefills = append(e.gpus.prefills, &r.job)
		r.loads = e.loading.join()
		fetches.Go(func() {
			if err := e.fetch(ctx, r); err != nil {
				fail(err)
			}
		})
	}
	// until waits for an event, a time or, with neither, for an arrival.
	until := func(event <-chan struct{}, at time.Time) error {
		var over <-chan time.Time
		if !at.IsZero() {
			timer := time.NewTimer(time.Until(at))
			defer timer.Stop()
			over = timer.C
		}
		for {
			select {
			case r := <-e.arrivals:
				e.waiting = append(e.waiting, r)
				schedule()
				if event == nil && over == nil {
					return nil
				}
			case <-event:
				return nil
			case <-over:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	ready := func(j *job) bool {
		select {
		case <-j.of.known:
			return true
		default:
			return false
		}
	}
	for {
		prompt := e.gpus.next(ready)
		switch {
		case prompt != nil && !prompt.begun:
			e.ahead = nil
			schedule()
			if until(prompt.of.loaded, time.Time{}) != nil {
				return
			}
		case prompt == nil && len(e.gpus.decodes) == 0:
			var event <-chan struct{}
			if e.ahead != nil {
				event = e.ahead.known
			}
			if until(event, time.Time{}) != nil {
				return
			}
			continue
		}
		first, last := e.gpus.run(prompt)
		if until(nil, e.wall(e.gpus.free)) != nil {
			return
		}
		if first != nil {
			e.remember(first.of)
			close(first.of.computed)
		}
		for _, j := range last {
			e.end(j.of)
		}
	}
}

// fetch looks a request up and loads what is found.
func (e *engine) fetch(ctx context.Context, r *request) error {
	defer r.loads.done()
	began := time.Now()
	r.keys = e.hash(r.text)
	hashed := time.Now()
	r.out.hash = e.span(hashed.Sub(began))
	e.mu.Lock()
	if e.memory != nil {
		r.inMemory = e.memory.use(r.keys)
	}
	e.mu.Unlock()
	found := 0
	if rest := r.keys[r.inMemory:]; len(rest) > 0 {
		var err error
		if found, err = e.store.LookupPrefix(ctx, rest); err != nil && ctx.Err() == nil {
			return fmt.Errorf("bench: lookup: %w", err)
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	known := time.Now()
	r.out.lookup = e.span(known.Sub(hashed))
	r.looked = e.at(known)
	r.ready = r.looked
	r.hits = r.inMemory + found
	e.mu.Lock()
	r.out.earlierBlocks, r.out.computedBlocks = e.past.look(r.keys, r.hits)
	e.mu.Unlock()
	if found == 0 {
		r.cache(r.hits * e.subject.blockTokens)
		close(r.loaded)
		close(r.known)
		return nil
	}
	loaded, err := e.load(ctx, r, found)
	if err != nil {
		return err
	}
	r.hits = r.inMemory + loaded
	r.out.hitBlocks = loaded
	r.cache(r.hits * e.subject.blockTokens)
	close(r.loaded)
	return nil
}

// remember says that the blocks of a request are computed.
func (e *engine) remember(r *request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.past.add(r.keys)
	if e.memory != nil {
		e.memory.computed(r.keys, r.inMemory)
	}
}

// end ends a request at its last token.
func (e *engine) end(r *request) {
	e.mu.Lock()
	if e.memory != nil {
		e.memory.release(r.keys)
	}
	e.mu.Unlock()
	if r.finished != nil {
		r.finished(e.gpus.free)
	}
}

// finish waits for the first token of a request, saves its new blocks and compares those
// that were loaded.
func (e *engine) finish(ctx context.Context, r *request) error {
	select {
	case <-r.computed:
	case <-ctx.Done():
		return ctx.Err()
	}
	if err := e.save(ctx, r); err != nil {
		return err
	}
	return e.verify(r)
}

// outcomeOf returns what was measured of a request. work has returned.
func (e *engine) outcomeOf(r *request) outcome {
	o := r.out
	o.arrival, o.tokens, o.prompt, o.output, o.together = r.arrival, r.tokens, r.prompt, r.output, r.together
	o.keys, o.memoryBlocks, o.stalled = r.keys, r.inMemory, r.stalled
	return o
}
