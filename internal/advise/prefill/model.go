package prefill

import (
	"fmt"
	"math"

	"github.com/kv3fs/kv3fs/internal/advise/model"
)

// Model is a model's shape with the cost of a prefill.
type Model struct {
	model.Shape
	Params     float64 // used for each token; of a mixture of experts, only the active ones
	QueryHeads int
	// Dimensions of a head's key and value during computation. For MLA they differ from
	// those in the KV cache. Zero means HeadDim.
	KeyDim, ValueDim int
	// WindowedLayers is the number of layers that attend only to a short window. Their
	// attention counts as free.
	WindowedLayers int
	Weights        Weights
}

// Weights describes a model's parameters in GPU memory.
type Weights struct {
	Params        float64 // all of them, also the experts that a token does not use
	BytesPerParam float64
	// Of a mixture of experts: how many there are, and how many of them a token uses. Zero
	// for a dense model. Experts that all tokens use do not count.
	Experts, ExpertsPerToken int
}

// Bytes returns the size of all weights.
func (w Weights) Bytes() float64 { return w.Params * w.BytesPerParam }

// Bounds far above any model, so that sums stay finite.
const (
	maxParams = 1e15
	maxHeads  = 1 << 16
	maxDim    = 1 << 16
)

// Check returns an error that says what is wrong with a model.
func (m Model) Check() error {
	if err := m.Shape.Check(); err != nil {
		return err
	}
	switch key, value := m.dims(); {
	case !(m.Params >= 1 && m.Params <= maxParams): // also a NaN
		return fmt.Errorf("prefill: parameters must be 1 to %g, not %g", maxParams, m.Params)
	case m.QueryHeads < 1 || m.QueryHeads > maxHeads:
		return fmt.Errorf("prefill: query heads must be 1 to %d, not %d", maxHeads, m.QueryHeads)
	case key < 1 || value < 1 || key > maxDim || value > maxDim:
		return fmt.Errorf("prefill: dimensions of a head's key and value must be 1 to %d, not %d and %d", maxDim, key, value)
	case m.WindowedLayers < 0 || m.WindowedLayers > m.Layers:
		return fmt.Errorf("prefill: layers with a window must be 0 to all %d layers, not %d", m.Layers, m.WindowedLayers)
	}
	return nil
}

// WeightsRead returns how many bytes of weights a forward pass over so many tokens reads
// from GPU memory at least. A pass over few tokens needs some of the experts only; which
// ones a token uses is taken as random.
func (m Model) WeightsRead(tokens int) float64 {
	w := m.Weights
	if w.Experts <= w.ExpertsPerToken {
		return w.Bytes()
	}
	each := (w.Params - m.Params) / float64(w.Experts-w.ExpertsPerToken) // parameters of an expert, over all layers
	unused := math.Pow(1-float64(w.ExpertsPerToken)/float64(w.Experts), float64(max(tokens, 1)))
	return w.BytesPerParam * (w.Params - unused*float64(w.Experts)*each)
}

func (m Model) dims() (key, value int) {
	key, value = m.KeyDim, m.ValueDim
	if key == 0 {
		key = m.HeadDim
	}
	if value == 0 {
		value = m.HeadDim
	}
	return key, value
}

// FLOPs returns the number of floating-point operations for a prompt of totalTokens whose
// first cachedTokens are cached.
func (m Model) FLOPs(cachedTokens, totalTokens int) float64 {
	key, value := m.dims()
	a := 2 * float64(m.QueryHeads) * float64(key+value) * float64(m.Layers-m.WindowedLayers)
	cached, total := float64(cachedTokens), float64(totalTokens)
	return 2*m.Params*(total-cached) + a*(total-cached)*(total+cached)/2
}

// InstanceBytesPerToken returns how many bytes all tp ranks together load for a token.
// MLA's latent vector counts once, although every rank needs it; a KV head counts once
// for each rank that holds it.
func (m Model) InstanceBytesPerToken(tp int) (int64, error) {
	perRank, err := m.BytesPerToken(tp)
	if err != nil || m.MLA() {
		return perRank, err
	}
	return perRank * int64(tp), nil
}

// IdealSpeedup returns how many times faster a prompt is prefilled if its first
// cachedTokens cost nothing.
func (m Model) IdealSpeedup(cachedTokens, totalTokens int) float64 {
	rest := m.FLOPs(cachedTokens, totalTokens)
	if rest <= 0 {
		return math.Inf(1)
	}
	return m.FLOPs(0, totalTokens) / rest
}
