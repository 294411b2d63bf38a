package keys

import (
	"slices"
)

// Chain names the blocks of one sequence of tokens as it grows, turn by turn. One
// goroutine at a time may use it; Keys and Clone may be called by any number at once
// while none appends.
type Chain struct {
	scheme      scheme
	blockTokens int
	last        ID       // of the block before the next
	blocks      int      // whole so far
	pending     []uint32 // tokens after them
	scratch     []byte
}

// Block is a whole block's names.
type Block struct {
	Key Key
	ID  ID // the engine's; of kv3fs's own chain the key again
}

// A scheme is one way to chain blocks. It never changes, so that chains can share it.
type scheme interface {
	// root is what the first block is chained to.
	root() ID

	// next chains a block to the one before. It may overwrite scratch and returns it,
	// grown if it had to.
	next(previous ID, tokens []uint32, scratch []byte) (ID, []byte)

	// name is what a block is called that next returned.
	name(link ID) Block
}

func newChain(ns Namespace, s scheme) *Chain {
	return &Chain{scheme: s, blockTokens: ns.BlockTokens, last: s.root()}
}

// Append takes the sequence's next tokens and returns the keys of the blocks that they
// make whole. However a sequence is cut into calls, its keys are the same.
func (c *Chain) Append(tokens []uint32) []Key {
	keys := make([]Key, 0, c.completes(tokens))
	c.take(tokens, func(link ID) { keys = append(keys, c.scheme.name(link).Key) })
	return keys
}

// AppendBlocks is Append with the engine's ids.
func (c *Chain) AppendBlocks(tokens []uint32) []Block {
	blocks := make([]Block, 0, c.completes(tokens))
	c.take(tokens, func(link ID) { blocks = append(blocks, c.scheme.name(link)) })
	return blocks
}

// Keys are the keys of a sequence that is given from its first token on. The chain
// stays as it is.
func (c *Chain) Keys(tokens []uint32) []Key {
	fresh := Chain{scheme: c.scheme, blockTokens: c.blockTokens, last: c.scheme.root()}
	return fresh.Append(tokens)
}

// Clone is a chain of its own with the same tokens so far: for a conversation that
// branches, or the next one of a namespace.
func (c *Chain) Clone() *Chain {
	clone := *c
	clone.pending, clone.scratch = slices.Clone(c.pending), nil
	return &clone
}

// Len is how many tokens the chain has taken, those of a block not yet whole included.
func (c *Chain) Len() int { return c.blocks*c.blockTokens + len(c.pending) }

// completes is how many blocks these tokens make whole.
func (c *Chain) completes(tokens []uint32) int {
	return (len(c.pending) + len(tokens)) / c.blockTokens
}

// take does with each block that the tokens make whole.
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
