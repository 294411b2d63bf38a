package policybench

// lru evicts the block that was used least recently.
type lru struct {
	capacity int
	held     []bool
	queue    queue
}

func newLRU(distinct, capacity int) *lru {
	return &lru{capacity: capacity, held: make([]bool, distinct), queue: newQueue(make([]link, distinct))}
}

func (c *lru) has(b int32) bool { return c.held[b] }

func (c *lru) use(b int32, _ int64, _ int) {
	switch {
	case c.held[b]:
		c.queue.remove(b)
	case c.queue.len >= c.capacity:
		c.held[c.queue.pop()] = false
	}
	c.held[b] = true
	c.queue.push(b)
}

// fifo evicts the block that was stored first.
type fifo struct{ lru }

func newFIFO(distinct, capacity int) *fifo { return &fifo{*newLRU(distinct, capacity)} }

func (c *fifo) use(b int32, nowMs int64, depth int) {
	if !c.held[b] {
		c.lru.use(b, nowMs, depth)
	}
}
