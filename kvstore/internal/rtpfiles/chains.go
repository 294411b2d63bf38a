package rtpfiles

import (
	"sync"

	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// link is what is known of a block's place in its prompt.
type link struct {
	before kv.Key // the block before it, unless it is the first
	at     int    // how many are before it
	goesOn bool   // a block is known to come after it
}

// chains remembers the order of prompts' blocks: RTP-LLM's key of a block stands for all
// blocks before it, but does not name them.
type chains struct {
	mu         sync.Mutex
	young, old map[kv.Key]link
}

// mostLinks bounds the memory: about twice as many are remembered, of about 80 bytes each.
const mostLinks = 1 << 16

func (c *chains) find(key kv.Key) (link, bool) {
	if l, ok := c.young[key]; ok {
		return l, true
	}
	l, ok := c.old[key]
	return l, ok
}

func (c *chains) put(key kv.Key, l link) {
	if c.young == nil || len(c.young) >= mostLinks {
		c.young, c.old = map[kv.Key]link{}, c.young
	}
	c.young[key] = l
}

// see remembers consecutive blocks of a prompt. The first one begins the prompt unless its
// place is known. If the order is a guess, what is known is kept for the others, too.
func (c *chains) see(blocks []kv.Key, guess bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := 0
	for i, key := range blocks {
		l, known := c.find(key)
		if !known || i > 0 && !guess {
			l = link{at: at, goesOn: l.goesOn}
			if i > 0 {
				l.before = blocks[i-1]
			}
		}
		l.goesOn = l.goesOn || i+1 < len(blocks)
		c.put(key, l)
		at = l.at + 1
	}
}

// place returns what is known of a block.
func (c *chains) place(key kv.Key) (link, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.find(key)
}

// upTo returns the blocks of the item of a block, up to it, where items have so many blocks,
// and the block before the item, if there is one.
func (c *chains) upTo(key kv.Key, most int) (blocks []kv.Key, before []kv.Key, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	last, ok := c.find(key)
	if !ok {
		return nil, nil, false
	}
	blocks = make([]kv.Key, last.at%most+1)
	for i := len(blocks) - 1; ; i-- {
		l, ok := c.find(key)
		if !ok || l.at%most != i {
			return nil, nil, false
		}
		blocks[i] = key
		if i == 0 {
			if l.at > 0 {
				before = []kv.Key{l.before}
			}
			return blocks, before, true
		}
		key = l.before
	}
}
