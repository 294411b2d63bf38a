// Package workerpool runs calls that may hang in the kernel, as they do when a server or
// a disk dies: so many at once, in order, and nobody waits for one longer than the
// pool's time. What hangs keeps its goroutine; when all hang, what is asked next
// fails at once.
package workerpool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/kv"
)

// ErrOverdue says that a job was begun and did not come back in time.
var ErrOverdue = errors.New("call into the kernel did not return in time")

// Job is one call, or some that belong together.
type Job struct {
	// Context: a job that is not begun when it ends is left, with its error.
	Context context.Context

	// Run does it.
	Run func()

	// Done is called once: without an error after Run has returned; with ErrOverdue
	// while Run is still at it; or with the reason why Run was and will not be called:
	// kv.ErrTimeout, kv.ErrClosed, or the context's.
	Done func(err error)

	// Late, which may be nil, is called when Run has returned after ErrOverdue. Close
	// does not wait for it.
	Late func()
}

// Pool runs jobs. Any number of goroutines may use it.
type Pool struct {
	size    int
	timeout time.Duration

	mu        sync.Mutex
	more      sync.Cond // of the queue
	ending    sync.Cond // of what Close waits for
	queue     []queued
	closed    bool
	unsettled int // jobs whose Done has not returned
	alive     int // goroutines
	stuck     int // of these
}

type queued struct {
	Job
	since time.Time
}

// New starts a pool of so many goroutines. A job waits for its turn no longer than
// timeout, and then runs no longer than that.
func New(size int, timeout time.Duration) *Pool {
	c := &Pool{size: size, timeout: timeout, alive: size}
	c.more.L, c.ending.L = &c.mu, &c.mu
	for range size {
		go c.work()
	}
	return c
}

// Go takes a job. It does not wait; how many there are is for its callers to bound.
func (c *Pool) Go(j Job) {
	c.mu.Lock()
	c.unsettled++
	refused := error(nil)
	switch {
	case c.closed:
		refused = kv.ErrClosed
	case c.stuck == c.size:
		refused = kv.ErrTimeout
	default:
		c.queue = append(c.queue, queued{j, time.Now()})
		c.more.Signal()
	}
	c.mu.Unlock()
	if refused != nil {
		c.settle(j, refused)
	}
}

func (c *Pool) settle(j Job, err error) {
	j.Done(err)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.unsettled--
	if c.closed {
		c.ending.Broadcast()
	}
}

func (c *Pool) work() {
	for {
		q, ok := c.next()
		if !ok {
			return
		}
		switch {
		case q.Context.Err() != nil:
			c.settle(q.Job, q.Context.Err())
		case time.Since(q.since) > c.timeout:
			c.settle(q.Job, kv.ErrTimeout)
		default:
			c.run(q.Job)
		}
	}
}

// next waits for a job; there is none after Close.
func (c *Pool) next() (q queued, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) == 0 {
		if c.closed {
			c.alive--
			c.ending.Broadcast()
			return queued{}, false
		}
		c.more.Wait()
	}
	q, c.queue[0] = c.queue[0], queued{}
	c.queue = c.queue[1:]
	return q, true
}

// run runs a job and settles it, or leaves that to the timer.
func (c *Pool) run(j Job) {
	var settled atomic.Bool
	timer := time.AfterFunc(c.timeout, func() {
		if settled.CompareAndSwap(false, true) {
			c.hangs()
			c.settle(j, ErrOverdue)
		}
	})
	j.Run()
	if settled.CompareAndSwap(false, true) {
		timer.Stop()
		c.settle(j, nil)
		return
	}
	if j.Late != nil {
		j.Late()
	}
	c.mu.Lock()
	c.stuck--
	c.mu.Unlock()
}

// hangs counts one who does not come back. When nobody is left, those who wait
// would do so in vain.
func (c *Pool) hangs() {
	c.mu.Lock()
	c.stuck++
	c.ending.Broadcast()
	var left []queued
	if c.stuck == c.size {
		left, c.queue = c.queue, nil
	}
	c.mu.Unlock()
	for _, q := range left {
		c.settle(q.Job, kv.ErrTimeout)
	}
}

// Close leaves what is not begun, with kv.ErrClosed, waits for what is, no longer
// than the pool's time, and says if something has never come back.
func (c *Pool) Close() error {
	c.mu.Lock()
	left := c.queue
	c.queue, c.closed = nil, true
	c.more.Broadcast()
	c.mu.Unlock()
	for _, q := range left {
		c.settle(q.Job, kv.ErrClosed)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for c.unsettled > 0 || c.alive > c.stuck {
		c.ending.Wait()
	}
	if c.stuck > 0 {
		return fmt.Errorf("%d %w, %v ago or more", c.stuck, ErrOverdue, c.timeout)
	}
	return nil
}
