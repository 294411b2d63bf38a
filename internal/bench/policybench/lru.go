package policybench

import "github.com/kv3fs/kv3fs/internal/keeper/policy"

// lru evicts the block that was used least recently.
type lru struct {
	capacity int
	held     []bool
	queue    policy.Queue
}

func newLRU(distinct, capacity int) *lru {
	links := make(policy.Links, distinct)
	return &lru{capacity: capacity, held: make([]bool, distinct), queue: policy.NewQueue(&links)}
}

func (c *lru) has(b int32) bool { return c.held[b] }

func (c *lru) use(b int32, _ int64, _ int) {
	switch {
	case c.held[b]:
		c.queue.Remove(b)
	case c.queue.Len() >= c.capacity:
		c.held[c.queue.Pop()] = false
	}
	c.held[b] = true
	c.queue.Push(b)
}

// fifo evicts the block that was stored first.
type fifo struct{ lru }

func newFIFO(distinct, capacity int) *fifo { return &fifo{*newLRU(distinct, capacity)} }

func (c *fifo) use(b int32, nowMs int64, depth int) {
	if !c.held[b] {
		c.lru.use(b, nowMs, depth)
	}
}
