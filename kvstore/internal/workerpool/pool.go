// Package workerpool runs jobs on a fixed number of goroutines. All stores use it, for
// two kinds of work:
//
//   - Calls that may hang in the kernel, as they do when a server or a disk dies. A pool
//     with a timeout settles such a job when its time is over, whether or not the call
//     has returned. The call keeps its goroutine; while all goroutines are kept, new jobs
//     fail at once.
//   - Work for the processor, such as copies and checksums, which cannot hang. A pool
//     without a timeout runs it with no timer and no bookkeeping.
//
// Jobs begin in the order in which they were queued. Queuing never waits: the callers
// bound how much they queue.
package workerpool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/internal/invariants"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// ErrOverdue is the error of a job that was begun and did not return in time.
var ErrOverdue = errors.New("call into the kernel did not return in time")

// Job is one call, or several that belong together. Only Run must be set.
type Job struct {
	// Context ends the wait for a goroutine: a job that has not begun by then never
	// does, and is settled with the context's error.
	Context context.Context

	// Run does the work.
	Run func()

	// Done is called exactly once: with nil after Run has returned; with ErrOverdue
	// while Run is still going; or with the reason why Run is never called, which is
	// kv.ErrTimeout, kv.ErrClosed or the context's error.
	Done func(err error)

	// Late is called when Run returns after Done was given ErrOverdue. Close does not
	// wait for it.
	Late func()
}

// Work is work that consists of many small pieces.
type Work interface {
	// Do does the i-th piece. It must not wait for anything.
	Do(i int)
}

// Pool runs jobs. Any number of goroutines may use it.
type Pool struct {
	size    int
	timeout time.Duration // 0: none

	mu        sync.Mutex
	more      sync.Cond // signalled when the queue grows
	ending    sync.Cond // signalled when something changes that Close waits for
	queue     []queued  // from head on
	head      int
	closed    bool
	unsettled int // jobs whose Done has not returned
	alive     int // goroutines; at most size
	stuck     int // goroutines whose job is overdue; at most alive
}

// queued is a job, or the pieces low to high-1 of some work.
type queued struct {
	Job
	since time.Time

	work             Work
	low, high, grain int
}

// New starts a pool of size goroutines, which Close stops. With a timeout, a job waits
// for a goroutine at most that long and then runs at most that long.
func New(size int, timeout time.Duration) *Pool {
	p := &Pool{size: size, timeout: timeout, alive: size}
	p.more.L, p.ending.L = &p.mu, &p.mu
	for range size {
		go p.loop()
	}
	return p
}

// Go queues a job.
func (p *Pool) Go(j Job) {
	q := queued{Job: j}
	if p.timeout > 0 {
		q.since = time.Now()
	}
	p.mu.Lock()
	refused := error(nil)
	switch {
	case p.closed:
		refused = kv.ErrClosed
	case p.stuck == p.size:
		refused = kv.ErrTimeout
	}
	if j.Done != nil {
		p.unsettled++
	}
	if refused == nil {
		p.push(q)
		p.more.Signal()
	}
	p.mu.Unlock()
	if refused != nil {
		p.settle(j, refused)
	}
}

// Each queues the pieces low to high-1 of some work. A goroutine takes grain of them at
// a time, so several share the work and what was queued first is finished first. Each is
// for pools without a timeout, and must not be called after Close.
func (p *Pool) Each(w Work, low, high, grain int) {
	invariants.Check(p.timeout == 0, "pieces of work are on a pool that has a timeout of %v", p.timeout)
	p.mu.Lock()
	defer p.mu.Unlock()
	invariants.Check(!p.closed, "pieces of work were queued after Close")
	if last := len(p.queue) - 1; last >= p.head && p.queue[last].work == w && p.queue[last].high == low {
		p.queue[last].high = high
	} else {
		p.push(queued{work: w, low: low, high: high, grain: grain})
	}
	if high-low > grain {
		p.more.Broadcast()
	} else {
		p.more.Signal()
	}
}

// push appends to the queue. If most of its entries have left, it reuses their memory.
// The lock is held.
func (p *Pool) push(q queued) {
	if len(p.queue) == cap(p.queue) && p.head > len(p.queue)/2 {
		n := copy(p.queue, p.queue[p.head:])
		clear(p.queue[n:])
		p.queue, p.head = p.queue[:n], 0
	}
	p.queue = append(p.queue, q)
}

// pop takes the first job, or the next pieces of the first work. The lock is held.
func (p *Pool) pop() queued {
	first := &p.queue[p.head]
	q := *first
	if q.work != nil && q.high-q.low > q.grain {
		q.high = q.low + q.grain
		first.low = q.high
		return q
	}
	*first = queued{}
	if p.head++; p.head == len(p.queue) {
		p.queue, p.head = p.queue[:0], 0
	}
	return q
}

// take empties the queue. The lock is held.
func (p *Pool) take() []queued {
	left := p.queue[p.head:]
	p.queue, p.head = nil, 0
	return left
}

// settle tells the owner of a job how it ended.
func (p *Pool) settle(j Job, err error) {
	if j.Done == nil {
		return
	}
	j.Done(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.unsettled--
	invariants.Check(p.unsettled >= 0, "a job was settled twice")
	if p.closed {
		p.ending.Broadcast()
	}
}

// loop is what each goroutine does.
func (p *Pool) loop() {
	for {
		q, ok := p.next()
		switch {
		case !ok:
			return
		case q.work != nil:
			for i := q.low; i < q.high; i++ {
				q.work.Do(i)
			}
		case q.Context != nil && q.Context.Err() != nil:
			p.settle(q.Job, q.Context.Err())
		case p.timeout == 0:
			q.Run()
			p.settle(q.Job, nil)
		case time.Since(q.since) > p.timeout:
			p.settle(q.Job, kv.ErrTimeout)
		default:
			p.run(q.Job)
		}
	}
}

// next waits for something to do. After Close it reports false.
func (p *Pool) next() (q queued, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.head == len(p.queue) {
		if p.closed {
			p.alive--
			p.ending.Broadcast()
			return queued{}, false
		}
		p.more.Wait()
	}
	return p.pop(), true
}

// run runs a job that may hang. The job is settled when Run returns, or by the timer
// before that.
func (p *Pool) run(j Job) {
	var settled atomic.Bool
	timer := time.AfterFunc(p.timeout, func() {
		if p.hangs(&settled) {
			p.settle(j, ErrOverdue)
		}
	})
	j.Run()
	if settled.CompareAndSwap(false, true) {
		timer.Stop()
		p.settle(j, nil)
		return
	}
	if j.Late != nil {
		j.Late()
	}
	p.mu.Lock()
	p.stuck--
	invariants.Check(p.stuck >= 0, "%d goroutines are stuck", p.stuck)
	p.mu.Unlock()
}

// hangs claims the settling of a job that is overdue, if Run has not returned, and counts
// its goroutine as one that does not come back. Both are one step under the lock: run
// takes the goroutine off the count again. When no goroutine is left, the queued jobs
// would wait in vain, so they fail.
func (p *Pool) hangs(settled *atomic.Bool) bool {
	p.mu.Lock()
	if !settled.CompareAndSwap(false, true) {
		p.mu.Unlock()
		return false
	}
	p.stuck++
	invariants.Check(p.stuck <= p.alive, "%d of %d goroutines are stuck", p.stuck, p.alive)
	p.ending.Broadcast()
	var left []queued
	if p.stuck == p.size {
		left = p.take()
	}
	p.mu.Unlock()
	for _, q := range left {
		p.settle(q.Job, kv.ErrTimeout)
	}
	return true
}

// Close settles jobs that have not begun with kv.ErrClosed and waits for those that
// have, at most for the pool's timeout. Its error says how many never returned. Work
// given to Each must be done before Close.
func (p *Pool) Close() error {
	p.mu.Lock()
	left := p.take()
	p.closed = true
	p.more.Broadcast()
	p.mu.Unlock()
	for _, q := range left {
		invariants.Check(q.work == nil, "pieces of work are queued at Close")
		p.settle(q.Job, kv.ErrClosed)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.unsettled > 0 || p.alive > p.stuck {
		p.ending.Wait()
	}
	if p.stuck > 0 {
		return fmt.Errorf("kvstore: %d calls into the kernel have not returned within %v: %w", p.stuck, p.timeout, ErrOverdue)
	}
	return nil
}
