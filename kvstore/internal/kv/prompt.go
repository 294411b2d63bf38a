package kv

import "context"

type promptKey struct{}

// WithPrompt returns a context for a LookupPrefix of some of a prompt's blocks. blocks are
// all of them, in order, from the first on.
func WithPrompt(ctx context.Context, blocks []Key) context.Context {
	return context.WithValue(ctx, promptKey{}, blocks)
}

// Prompt returns the blocks that WithPrompt has set, or else those that are looked up.
func Prompt(ctx context.Context, lookedUp []Key) []Key {
	if blocks, ok := ctx.Value(promptKey{}).([]Key); ok {
		return blocks
	}
	return lookedUp
}
