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
// Jobs that move much data, writes above all, are bulk: they let the others overtake them, see
// Job.Bulk. Otherwise jobs begin in the order in which they were queued. Queuing never
// waits: the callers bound how much they queue.
//
// A timeout means lack of progress, not time spent behind work that progresses. A job may
// wait in the queue for as long as calls end. A call is overdue when it has lasted for the
// timeout, counted from when it began or, if that is later, from when a call that began
// before it has ended: a device that is busy serves them in about that order.
package workerpool

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
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

	// Bulk is how many bytes a job moves that gives way to others: they overtake it in
	// the queue, and only so many of such jobs run at once that the others find a
	// goroutine, and a device that is not busy for long. 0: it gives way to none. One whose
	// context has ended gives way to none either.
	Bulk int64

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

const (
	// BulkBytes bounds the bytes of the bulk jobs that run at once, unless two alone have
	// more. A device needs no more to be busy, and what comes next waits for them. A pool
	// that moves no bytes may give its bulk jobs a part of it each.
	BulkBytes = 4 << 20

	// mostOvertaking is how many jobs may overtake a bulk job before one begins, so that
	// it waits in no case for ever.
	mostOvertaking = 8
)

// Pool runs jobs. Any number of goroutines may use it.
type Pool struct {
	size     int
	bulkSize int           // how many goroutines run bulk jobs at most
	timeout  time.Duration // 0: none

	mu         sync.Mutex
	more       sync.Cond // signalled when the queues grow
	ending     sync.Cond // signalled when something changes that Close waits for
	queue      fifo
	bulk       fifo // jobs that give way to those of queue
	overtaking int  // jobs that have begun while bulk jobs waited, since the last of these began
	running    load // of the bulk jobs that are running
	calls      []*call
	begun      uint64    // calls, ever
	progress   time.Time // when the last call ended
	closed     bool
	unsettled  int // jobs whose Done has not returned
	alive      int // goroutines; at most size
	stuck      int // goroutines whose job is overdue; at most alive
	stuckBulk  int // those of them whose job is bulk; at most bulkSize
}

// load is how many jobs there are, and their bytes.
type load struct {
	jobs  int
	bytes int64
}

// call is a job of a pool with a timeout, from when it begins until it has returned.
type call struct {
	queued
	number  uint64      // in the order in which calls began
	moving  time.Time   // when it began, or when the last call that began before it ended
	timer   *time.Timer // ends it when it is overdue
	settled atomic.Bool
}

// New starts a pool of size goroutines, which Close stops. With a timeout, a job that makes
// no progress for that long is settled.
func New(size int, timeout time.Duration) *Pool {
	p := &Pool{size: size, bulkSize: size, timeout: timeout, alive: size}
	if timeout > 0 && size > 1 {
		p.bulkSize = size - max(1, size/4) // the others are left for jobs that do not wait for a device
	}
	p.more.L, p.ending.L = &p.mu, &p.mu
	for range size {
		go p.loop()
	}
	return p
}

// Go queues a job.
func (p *Pool) Go(j Job) {
	p.mu.Lock()
	refused := error(nil)
	switch {
	case p.closed:
		refused = kv.ErrClosed
	case p.stuck == p.size, j.Bulk > 0 && p.stuckBulk == p.bulkSize:
		refused = kv.ErrTimeout
	}
	if j.Done != nil {
		p.unsettled++
	}
	if refused == nil {
		p.queueOf(j.Bulk).push(queued{Job: j})
		p.more.Signal()
	}
	p.mu.Unlock()
	if refused != nil {
		p.settle(j, refused)
	}
}

func (p *Pool) queueOf(bulk int64) *fifo {
	if bulk > 0 {
		return &p.bulk
	}
	return &p.queue
}

// Each queues the pieces low to high-1 of some work. A goroutine takes grain of them at
// a time, so several share the work and what was queued first is finished first. Each is
// for pools without a timeout, and must not be called after Close.
func (p *Pool) Each(w Work, low, high, grain int) { p.each(w, low, high, grain, 0) }

// EachBulk is Each for work that gives way to other work.
func (p *Pool) EachBulk(w Work, low, high, grain int) { p.each(w, low, high, grain, 1) }

func (p *Pool) each(w Work, low, high, grain int, bulk int64) {
	invariants.Check(p.timeout == 0, "pieces of work are on a pool that has a timeout of %v", p.timeout)
	p.mu.Lock()
	defer p.mu.Unlock()
	invariants.Check(!p.closed, "pieces of work were queued after Close")
	p.queueOf(bulk).pushPieces(queued{Job: Job{Bulk: bulk}, work: w, low: low, high: high, grain: grain})
	if high-low > grain {
		p.more.Broadcast()
	} else {
		p.more.Signal()
	}
}

// Left returns how much longer a caller that has waited since then, for room in a queue of
// its own, should wait: the timeout, counted from then or from when the last call ended.
func (p *Pool) Left(since time.Time) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.progress.After(since) {
		since = p.progress
	}
	return p.timeout - time.Since(since)
}

// choose returns the queue from which the next job is to be taken, or nil while none may
// begin. The lock is held.
func (p *Pool) choose() *fifo {
	mayBulk := p.bulk.len() > 0 && p.running.jobs+p.stuckBulk < p.bulkSize &&
		(p.running.jobs < 2 || p.running.bytes+p.bulk.first().Bulk <= BulkBytes)
	switch {
	case p.bulk.len() > 0 && p.bulk.first().cancelled(): // it takes no time
		return &p.bulk
	case mayBulk && (p.queue.len() == 0 || p.overtaking >= mostOvertaking):
		return &p.bulk
	case p.queue.len() > 0:
		return &p.queue
	}
	return nil
}

// settle tells the owner of a job how it ended.
func (p *Pool) settle(j Job, err error) {
	if j.Done == nil {
		return
	}
	j.Done(err)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.settledLocked()
}

func (p *Pool) settledLocked() {
	p.unsettled--
	invariants.Check(p.unsettled >= 0, "a job was settled twice")
	if p.closed {
		p.ending.Broadcast()
	}
}

// loop is what each goroutine does.
func (p *Pool) loop() {
	var ended *call
	for {
		c := p.next(ended)
		if c == nil {
			return
		}
		switch {
		case c.work != nil:
			for i := c.low; i < c.high; i++ {
				c.work.Do(i)
			}
		case c.cancelled():
			c.end(c.Context.Err())
		default:
			c.Run()
			c.end(nil)
			if c.Bulk > 0 {
				// Calls that return at once keep the processor from the goroutines that
				// are ready, until the scheduler takes it away after 10 ms.
				runtime.Gosched()
			}
		}
		ended = c
	}
}

// cancelled reports whether a job must not begin any more.
func (j *Job) cancelled() bool { return j.Context != nil && j.Context.Err() != nil }

// end tells the owner of a job how it ended, unless the timer has told it before.
func (c *call) end(err error) {
	switch {
	case !c.settled.CompareAndSwap(false, true):
		if c.Late != nil {
			c.Late()
		}
	case c.Done != nil:
		c.Done(err)
	}
	if c.timer != nil {
		c.timer.Stop()
	}
}

// next notes that a call has ended, if it is not nil, and waits for something to do. After
// Close it returns nil.
func (p *Pool) next(ended *call) *call {
	p.mu.Lock()
	defer p.mu.Unlock()
	var c *call
	if ended != nil {
		p.account(ended)
		if p.timeout == 0 { // nothing but this goroutine knows it any more
			c = ended
			c.queued = queued{}
		}
		ended = nil // who waits here keeps nobody's memory
	}
	from := p.choose()
	for ; from == nil; from = p.choose() {
		if p.closed {
			p.alive--
			p.ending.Broadcast()
			return nil
		}
		p.more.Wait()
	}
	if c == nil {
		c = new(call)
	}
	c.queued = from.pop()
	c.settled.Store(false)
	switch {
	case c.Bulk > 0:
		p.running.jobs++
		p.running.bytes += c.Bulk
		p.overtaking = 0
	case p.bulk.len() > 0:
		p.overtaking++
	}
	if p.timeout > 0 {
		p.begun++
		c.number, c.moving = p.begun, time.Now()
		c.timer = time.AfterFunc(p.timeout, func() { p.expire(c) })
		p.calls = append(p.calls, c)
	}
	if p.choose() != nil {
		p.more.Signal() // one end may let several begin
	}
	return c
}

// account notes that a call has ended and that its Done has returned. The lock is held.
func (p *Pool) account(c *call) {
	if c.timer == nil || p.forget(c) {
		p.release(c)
		if c.Done != nil {
			p.settledLocked()
		}
	} else { // it was overdue, and expire settles it
		p.stuck--
		if c.Bulk > 0 {
			p.stuckBulk--
		}
		invariants.Check(p.stuck >= 0 && p.stuckBulk >= 0, "%d goroutines are stuck, %d of them in bulk jobs", p.stuck, p.stuckBulk)
	}
	if p.timeout == 0 {
		return
	}
	p.progress = time.Now()
	for _, other := range p.calls {
		if other.number > c.number {
			other.moving = p.progress
		}
	}
}

// forget removes a call from those that run, and reports whether it was one. The lock is
// held.
func (p *Pool) forget(c *call) bool {
	i := slices.Index(p.calls, c)
	if i < 0 {
		return false
	}
	last := len(p.calls) - 1
	p.calls[i], p.calls[last] = p.calls[last], nil
	p.calls = p.calls[:last]
	return true
}

// release takes a bulk job off the load. The lock is held.
func (p *Pool) release(c *call) {
	if c.Bulk > 0 {
		p.running.jobs--
		p.running.bytes -= c.Bulk
		invariants.Check(p.running.jobs >= 0 && p.running.bytes >= 0, "%d bulk jobs of %d bytes are running", p.running.jobs, p.running.bytes)
	}
}

// expire settles a call that is overdue, if it has not returned, and counts its goroutine
// as one that does not come back. When no goroutine is left, the queued jobs would wait in
// vain, so they fail.
func (p *Pool) expire(c *call) {
	p.mu.Lock()
	if left := p.timeout - time.Since(c.moving); left > 0 {
		if !c.settled.Load() {
			c.timer.Reset(left)
		}
		p.mu.Unlock()
		return
	}
	if !c.settled.CompareAndSwap(false, true) {
		p.mu.Unlock()
		return
	}
	p.forget(c)
	p.release(c)
	p.stuck++
	if c.Bulk > 0 {
		p.stuckBulk++
	}
	invariants.Check(p.stuck <= p.alive && p.stuckBulk <= p.bulkSize, "%d of %d goroutines are stuck, %d in bulk jobs", p.stuck, p.alive, p.stuckBulk)
	p.ending.Broadcast()
	var left []queued
	if p.stuck == p.size || p.stuckBulk == p.bulkSize {
		left = p.bulk.take()
	}
	if p.stuck == p.size {
		left = append(left, p.queue.take()...)
	}
	p.more.Signal() // other bulk jobs may run instead
	p.mu.Unlock()
	p.settle(c.Job, ErrOverdue)
	for _, q := range left {
		p.settle(q.Job, kv.ErrTimeout)
	}
}

// Close settles jobs that have not begun with kv.ErrClosed and waits for those that
// have, at most for the pool's timeout. Its error says how many never returned. Work
// given to Each must be done before Close.
func (p *Pool) Close() error {
	p.mu.Lock()
	left := append(p.queue.take(), p.bulk.take()...)
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
