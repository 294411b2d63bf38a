package transformer

import (
	"errors"
	"fmt"
)

// Kind says which tokens a layer's token sees.
type Kind string

// The kinds of layers.
const (
	Full    Kind = "full"    // all before it
	Sliding Kind = "sliding" // the last Window
	Chunked Kind = "chunked" // those in the same chunk of Window tokens
	Sparse  Kind = "sparse"  // Window tokens, picked by an index over all before it
	State   Kind = "state"   // a recurrent state, which has the same size for any prompt
)

// Layers is a number of layers of one kind. A layer with attention keeps either the keys
// and values of KVHeads, or one latent vector for all heads (MLA), which every rank holds
// in full.
type Layers struct {
	Kind   Kind
	Count  int
	Window int // tokens; of Sliding, Chunked and Sparse layers

	QueryHeads, KeyDim, ValueDim int // in computation
	KVHeads                      int
	LatentDim                    int // MLA: rank of the compressed KV plus the rotary part
	LatentValueDim               int // MLA: rank of the compressed KV, the value of sparse attention

	IndexHeads, IndexDim int // Sparse

	StateBytes    int64   // State: of all ranks together
	FLOPsPerToken float64 // State: besides the matrix products with parameters
}

// mla reports whether the layers keep a latent vector.
func (l Layers) mla() bool { return l.LatentDim > 0 }

// pairFLOPs returns the operations for a token and one that it sees.
func (l Layers) pairFLOPs() float64 { return 2 * float64(l.QueryHeads) * float64(l.KeyDim+l.ValueDim) }

// window returns how many tokens a Sparse layer's window is worth, in pairs of pairFLOPs.
func (l Layers) window() float64 {
	if l.Kind != Sparse {
		return float64(l.Window)
	}
	return float64(l.Window) * float64(l.LatentDim+l.LatentValueDim) / float64(l.KeyDim+l.ValueDim)
}

// pairs returns how many pairs of tokens there are in a prompt of n tokens.
func (l Layers) pairs(n float64) float64 {
	w := l.window()
	switch {
	case l.Kind == State:
		return 0
	case l.Kind == Chunked:
		whole := float64(int64(n / w))
		rest := n - whole*w
		return whole*w*w/2 + rest*rest/2
	case l.Kind != Full && n > w:
		return w*w/2 + (n-w)*w
	}
	return n * n / 2
}

// flops returns the operations of one layer for a prompt of n tokens, without matrix
// products with parameters.
func (l Layers) flops(n float64) float64 {
	index := 2 * float64(l.IndexHeads) * float64(l.IndexDim) * n * n / 2
	return l.pairFLOPs()*l.pairs(n) + index + l.FLOPsPerToken*n
}

// needed returns of how many tokens a hit of cachedTokens needs the KV, in whole blocks.
func (l Layers) needed(cachedTokens, blockTokens int) int {
	blocks := func(tokens int) int { return (tokens + blockTokens - 1) / blockTokens * blockTokens }
	switch l.Kind {
	case State:
		return 0
	case Sliding:
		return min(cachedTokens, blocks(l.Window))
	case Chunked:
		return min(cachedTokens, blocks(cachedTokens%l.Window))
	}
	return cachedTokens
}

// indexBytes is what a Sparse layer keeps of a token for its index: FP8 with a 4-byte scale
// for each 128 elements.
func (l Layers) indexBytes() int64 { return int64(l.IndexDim) + 4*int64((l.IndexDim+127)/128) }

// rankBytes returns what one of tp ranks keeps of a token in one layer.
func (l Layers) rankBytes(tp int, elementBytes int64) (int64, error) {
	switch {
	case l.Kind == State:
		return 0, nil
	case l.mla():
		bytes := int64(l.LatentDim) * elementBytes
		if l.Kind == Sparse {
			bytes += l.indexBytes()
		}
		return bytes, nil
	}
	if big, small := max(l.KVHeads, tp), min(l.KVHeads, tp); big%small != 0 {
		return 0, fmt.Errorf("%d KV heads cannot be divided among %d ranks; tensor parallelism must divide that number or be a multiple of it", l.KVHeads, tp)
	}
	return int64(max(l.KVHeads/tp, 1)) * int64(l.KeyDim+l.ValueDim) * elementBytes, nil
}

// Bounds far above any model, so that sums stay finite and products fit an int64.
const (
	maxLayers = 10_000
	maxHeads  = 1 << 16
	maxDim    = 1 << 16
	maxWidth  = 1 << 20 // heads times dimension
	maxWindow = 1 << 30
	maxState  = 1 << 40
	maxTP     = 4096
)

// Check returns an error that says what is wrong with the layers.
func (l Layers) Check() error {
	if l.Count < 1 || l.Count > maxLayers {
		return fmt.Errorf("layers must be 1 to %d, not %d", maxLayers, l.Count)
	}
	if l.Kind == State {
		if l.StateBytes < 1 || l.StateBytes > maxState {
			return fmt.Errorf("a layer's state must be 1 to %d bytes, not %d", int64(maxState), l.StateBytes)
		}
		return nil
	}
	switch {
	case l.QueryHeads < 1 || l.QueryHeads > maxHeads:
		return fmt.Errorf("query heads must be 1 to %d, not %d", maxHeads, l.QueryHeads)
	case l.KeyDim < 1 || l.ValueDim < 1 || l.KeyDim > maxDim || l.ValueDim > maxDim:
		return fmt.Errorf("dimensions of a head's key and value must be 1 to %d, not %d and %d", maxDim, l.KeyDim, l.ValueDim)
	case !l.mla() && l.KVHeads == 0:
		return errors.New("give KV heads and head dimension, or an MLA dimension (576 for DeepSeek-V3)")
	case l.mla() && l.KVHeads != 0:
		return errors.New("give KV heads and head dimension, or an MLA dimension, not both")
	case l.mla() && (l.LatentDim > maxWidth || l.LatentValueDim > l.LatentDim):
		return fmt.Errorf("the MLA dimension must be 1 to %d, not %d", maxWidth, l.LatentDim)
	case !l.mla() && (l.KVHeads < 1 || l.KVHeads > maxWidth/max(l.KeyDim, l.ValueDim)):
		return fmt.Errorf("KV heads must be 1 to %d, not %d", maxWidth/max(l.KeyDim, l.ValueDim), l.KVHeads)
	case !l.mla() && l.QueryHeads%l.KVHeads != 0:
		return fmt.Errorf("query heads must be a multiple of the KV heads, %d, not %d", l.KVHeads, l.QueryHeads)
	case l.Kind != Full && (l.Window < 1 || l.Window > maxWindow):
		return fmt.Errorf("a window must be 1 to %d tokens, not %d", maxWindow, l.Window)
	case l.Kind == Sparse && (!l.mla() || l.LatentValueDim < 1 || l.IndexHeads < 1 || l.IndexDim < 1 || l.IndexHeads > maxHeads || l.IndexDim > maxDim):
		return errors.New("sparse attention needs MLA and an index with heads and a dimension")
	}
	return nil
}
