package policybench

import "github.com/kv3fs/kv3fs/internal/keeper/policy"

// tuned is kv3fs's own policy: package policy decides, here are only the blocks. Those with
// the same number of uses leave in the order of their last use, so the block with the
// lowest score is the oldest of one of the queues.
type tuned struct {
	capacity int
	tuner    *policy.Tuner
	ghosts   *policy.Ghosts
	heat     []policy.Heat // by block, 0 if not held
	byUses   [policy.MaxUses]policy.Queue
	held     int
}

func newTuned(distinct, capacity int) *tuned {
	c := &tuned{capacity: capacity, heat: make([]policy.Heat, distinct),
		tuner:  policy.NewTuner(policy.Options{CapacityBytes: int64(capacity)}), // a block counts as a byte
		ghosts: policy.NewGhosts(policy.GhostKeys)}
	links := make(policy.Links, distinct)
	for i := range c.byUses {
		c.byUses[i] = policy.NewQueue(&links)
	}
	return c
}

func (c *tuned) has(b int32) bool { return c.heat[b] != 0 }

func (c *tuned) use(b int32, nowMs int64, depth int) {
	uses := 1
	if c.has(b) {
		uses += c.heat[b].Uses()
		c.queue(b).Remove(b)
	} else {
		uses += c.ghosts.Return(uint64(b))
		if c.held >= c.capacity {
			c.evict()
		}
		c.held++
	}
	c.heat[b] = policy.MakeHeat(nowMs, depth, uses)
	c.queue(b).Push(b)
	c.tuner.Use(uint64(b), 1, nowMs, uses)
}

func (c *tuned) queue(b int32) *policy.Queue { return &c.byUses[c.heat[b].Uses()-1] }

func (c *tuned) evict() {
	v := c.victim()
	c.queue(v).Remove(v)
	c.ghosts.Leave(uint64(v), c.heat[v].Uses())
	c.heat[v] = 0
	c.held--
}

// victim returns the block with the lowest score. There must be one.
func (c *tuned) victim() int32 {
	bonus := c.tuner.Bonus()
	victim, lowest := policy.NoSlot, policy.Score(0)
	for i := range c.byUses {
		b := c.byUses[i].Oldest()
		if b == policy.NoSlot {
			continue
		}
		if score := c.heat[b].Score(bonus); victim == policy.NoSlot || score < lowest {
			victim, lowest = b, score
		}
	}
	return victim
}
