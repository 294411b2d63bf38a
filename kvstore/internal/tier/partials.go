package tier

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// partials knows which shards of blocks the near store has saved that come in several batches. When it has all of a block,
// the block is to be sent, whether it is found near then or was evicted already.
type partials struct {
	patience time.Duration // a block without a new shard for so long is forgotten, as the near store forgets it
	shards   int           // of a block

	mu     sync.Mutex
	blocks map[kv.Key]*partial
}

type partial struct {
	have []bool
	owed bool // the far store has refused a part of it
	last time.Time
}

// mostPartials bounds the memory. Beyond it, blocks are not counted, but looked up.
const mostPartials = 1 << 14

// saved reports whether these shards complete a block, and whether the far store lacks these or earlier ones.
func (p *partials) saved(key kv.Key, indexes []int, lacks bool) (whole, owed bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	idle := func(_ kv.Key, b *partial) bool { return now.Sub(b.last) > p.patience }
	b := p.blocks[key]
	if b == nil || idle(key, b) {
		if b == nil && len(p.blocks) >= mostPartials {
			maps.DeleteFunc(p.blocks, idle)
			if len(p.blocks) >= mostPartials {
				return false, lacks
			}
		}
		b = &partial{have: make([]bool, p.shards)}
		if p.blocks == nil {
			p.blocks = map[kv.Key]*partial{}
		}
		p.blocks[key] = b
	}
	b.last, b.owed = now, b.owed || lacks
	for _, i := range indexes {
		b.have[i] = true
	}
	if slices.Contains(b.have, false) {
		return false, b.owed
	}
	delete(p.blocks, key)
	return true, b.owed
}

// drop forgets what came of blocks.
func (p *partials) drop(keys ...kv.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, key := range keys {
		delete(p.blocks, key)
	}
}
