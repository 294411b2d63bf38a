package keys

import (
	"slices"
)

// Chain names the blocks of one sequence of tokens as it grows, turn by turn. Only one
// goroutine at a time may use it, but any number may call Keys and Clone while none
// appends.
type Chain struct {
	scheme      scheme
	blockTokens int
	last        ID       // of the block before the next
	blocks      int      // whole so far
	pending     []uint32 // tokens after them
	scratch     []byte
}

// Block has the names of a whole block.
type Block struct {
	Key Key
	ID  ID // the engine's; of kv3fs's own chain the key again
}

// A scheme is one way to chain blocks. It is immutable, so chains can share it.
type scheme interface {
	// root returns the id to which the first block is chained.
	root() ID

	// next chains a block to the one before. It may overwrite and grow scratch, and
	// returns it.
	next(previous ID, tokens []uint32, scratch []byte) (ID, []byte)

	// name returns the names of a block for an id that next returned.
	name(link ID) Block
}

func newChain(ns Namespace, s scheme) *Chain {
	return &Chain{scheme: s, blockTokens: ns.BlockTokens, last: s.root()}
}

// Append takes the next tokens of the sequence and returns the keys of the blocks that
// they complete. The keys do not depend on how the sequence is cut into calls.
func (c *Chain) Append(tokens []uint32) []Key {
	keys := make([]Key, 0, c.completes(tokens))
	c.take(tokens, func(link ID) { keys = append(keys, c.scheme.name(link).Key) })
	return keys
}

// AppendBlocks is Append, and also returns the engine's ids.
func (c *Chain) AppendBlocks(tokens []uint32) []Block {
	blocks := make([]Block, 0, c.completes(tokens))
	c.take(tokens, func(link ID) { blocks = append(blocks, c.scheme.name(link)) })
	return blocks
}

// Keys returns the keys of a sequence that begins with these tokens. The chain does not
// change.
func (c *Chain) Keys(tokens []uint32) []Key {
	fresh := Chain{scheme: c.scheme, blockTokens: c.blockTokens, last: c.scheme.root()}
	return fresh.Append(tokens)
}

// Clone returns an independent chain with the same tokens so far, for a conversation
// that branches or, cloned while empty, for the next sequence of a namespace.
func (c *Chain) Clone() *Chain {
	clone := *c
	clone.pending, clone.scratch = slices.Clone(c.pending), nil
	return &clone
}

// Len returns how many tokens the chain has taken, those of an incomplete block
// included.
func (c *Chain) Len() int { return c.blocks*c.blockTokens + len(c.pending) }

// completes returns how many blocks these tokens complete.
func (c *Chain) completes(tokens []uint32) int {
	return (len(c.pending) + len(tokens)) / c.blockTokens
}

// take calls do for each block that the tokens complete.
func (c *Chain) take(tokens []uint32, do func(ID)) {
	for len(c.pending)+len(tokens) >= c.blockTokens {
		var block []uint32
		if len(c.pending) > 0 {
			missing := c.blockTokens - len(c.pending)
			block, tokens = append(c.pending, tokens[:missing]...), tokens[missing:]
			c.pending = block[:0]
		} else {
			block, tokens = tokens[:c.blockTokens], tokens[c.blockTokens:]
		}
		c.last, c.scratch = c.scheme.next(c.last, block, c.scratch[:0])
		c.blocks++
		do(c.last)
	}
	c.pending = append(c.pending, tokens...)
}
