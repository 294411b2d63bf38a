package cache

import "sync"

// crew is the goroutines that copy, and their queue. What is queued first is begun
// first, by all of them together.
type crew struct {
	grain int // how many shards one takes at a time

	mu    sync.Mutex
	more  sync.Cond
	queue []work
	ended bool
	wg    sync.WaitGroup
}

// work is the shards low to high, in a sense that copier knows.
type work struct {
	c         copier
	low, high int
}

// copier copies its i-th shard, and does not wait for anything.
type copier interface{ copy(i int) }

func newCrew(size, grain int) *crew {
	c := &crew{grain: grain}
	c.more.L = &c.mu
	for range size {
		c.wg.Go(c.work)
	}
	return c
}

func (c *crew) push(w copier, low, high int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if last := len(c.queue) - 1; last >= 0 && c.queue[last].c == w && c.queue[last].high == low {
		c.queue[last].high = high
	} else {
		c.queue = append(c.queue, work{w, low, high})
	}
	if high-low > c.grain {
		c.more.Broadcast()
	} else {
		c.more.Signal()
	}
}

func (c *crew) work() {
	for {
		w, ok := c.next()
		if !ok {
			return
		}
		for i := w.low; i < w.high; i++ {
			w.c.copy(i)
		}
	}
}

// next waits for work; there is none when the crew has ended and the queue is empty.
func (c *crew) next() (work, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.queue) == 0 {
		if c.ended {
			return work{}, false
		}
		c.more.Wait()
	}
	first := &c.queue[0]
	w := *first
	if w.high-w.low > c.grain {
		w.high = w.low + c.grain
		first.low = w.high
		return w, true
	}
	*first = work{}
	if c.queue = c.queue[1:]; len(c.queue) == 0 {
		c.queue = nil
	}
	return w, true
}

// end lets the crew finish what is queued.
func (c *crew) end() {
	c.mu.Lock()
	c.ended = true
	c.more.Broadcast()
	c.mu.Unlock()
	c.wg.Wait()
}
