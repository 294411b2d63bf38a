package policybench

import "container/heap"

// lfu evicts the block that was used least often since it was stored; of several, the one
// that was used least recently.
type lfu struct {
	capacity int
	clock    int64
	uses     []int64 // by block
	lastUse  []int64
	place    []int // in order, -1 if not held
	order    []int32
}

func newLFU(distinct, capacity int) *lfu {
	c := &lfu{capacity: capacity, uses: make([]int64, distinct), lastUse: make([]int64, distinct), place: make([]int, distinct)}
	for b := range c.place {
		c.place[b] = -1
	}
	return c
}

func (c *lfu) has(b int32) bool { return c.place[b] >= 0 }

func (c *lfu) use(b int32, _ int64, _ int) {
	c.clock++
	if c.has(b) {
		c.uses[b]++
		c.lastUse[b] = c.clock
		heap.Fix(c, c.place[b])
		return
	}
	if len(c.order) >= c.capacity {
		heap.Pop(c)
	}
	c.uses[b], c.lastUse[b] = 1, c.clock
	heap.Push(c, b)
}

// The methods of heap.Interface, with the next victim first.

func (c *lfu) Len() int { return len(c.order) }

func (c *lfu) Less(i, j int) bool {
	a, b := c.order[i], c.order[j]
	return c.uses[a] < c.uses[b] || c.uses[a] == c.uses[b] && c.lastUse[a] < c.lastUse[b]
}

func (c *lfu) Swap(i, j int) {
	c.order[i], c.order[j] = c.order[j], c.order[i]
	c.place[c.order[i]], c.place[c.order[j]] = i, j
}

func (c *lfu) Push(x any) {
	b := x.(int32)
	c.place[b] = len(c.order)
	c.order = append(c.order, b)
}

func (c *lfu) Pop() any {
	b := c.order[len(c.order)-1]
	c.order = c.order[:len(c.order)-1]
	c.place[b] = -1
	return b
}
