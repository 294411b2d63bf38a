package policybench

import "github.com/kv3fs/kv3fs/internal/keeper/policy"

// s3fifo is S3-FIFO of Yang, Zhang, Qiu, Yue and Rashmi, "FIFO queues are all you need for
// cache eviction", SOSP 2023: a small FIFO queue of a tenth of the capacity that new blocks
// pass, a main one, and a queue of the numbers of blocks that left the small one. Each
// block has a counter of uses up to 3. A block that leaves the small queue with more than
// one use moves to the main one; one that returns while it is in the ghost queue goes to
// the main one at once; one that reaches the end of the main queue with a use left starts
// there again with one less. The ghost queue has as many entries as the main one.
type s3fifo struct {
	capacity, smallTarget, ghostCapacity int

	in                 []uint8 // by block: where it is
	uses               []uint8
	small, main, ghost policy.Queue
}

const (
	nowhere = iota
	inSmall
	inMain
	inGhost
)

func newS3FIFO(distinct, capacity int) *s3fifo {
	links := make(policy.Links, distinct)
	small := max(1, capacity/10)
	return &s3fifo{capacity: capacity, smallTarget: small, ghostCapacity: capacity - small,
		in: make([]uint8, distinct), uses: make([]uint8, distinct),
		small: policy.NewQueue(&links), main: policy.NewQueue(&links), ghost: policy.NewQueue(&links)}
}

func (c *s3fifo) has(b int32) bool { return c.in[b] == inSmall || c.in[b] == inMain }

func (c *s3fifo) use(b int32, _ int64, _ int) {
	if c.has(b) {
		c.uses[b] = min(3, c.uses[b]+1)
		return
	}
	for c.small.Len()+c.main.Len() >= c.capacity {
		if c.small.Len() >= c.smallTarget {
			c.evictSmall()
		} else {
			c.evictMain()
		}
	}
	c.uses[b] = 0
	if c.in[b] == inGhost { // evicting may have forgotten it
		c.ghost.Remove(b)
		c.put(&c.main, inMain, b)
	} else {
		c.put(&c.small, inSmall, b)
	}
}

func (c *s3fifo) put(q *policy.Queue, in uint8, b int32) {
	c.in[b] = in
	q.Push(b)
}

// evictSmall moves blocks from the small queue to the main one until one leaves.
func (c *s3fifo) evictSmall() {
	for c.small.Len() > 0 {
		b := c.small.Pop()
		if c.uses[b] > 1 {
			c.uses[b] = 0
			c.put(&c.main, inMain, b)
			continue
		}
		c.in[b] = nowhere
		if c.ghostCapacity > 0 {
			if c.ghost.Len() >= c.ghostCapacity {
				c.in[c.ghost.Pop()] = nowhere
			}
			c.put(&c.ghost, inGhost, b)
		}
		return
	}
}

// evictMain has the first block leave that has no use left.
func (c *s3fifo) evictMain() {
	for c.main.Len() > 0 {
		b := c.main.Pop()
		if c.uses[b] == 0 {
			c.in[b] = nowhere
			return
		}
		c.uses[b]--
		c.main.Push(b)
	}
}
