package transformer

import (
	"fmt"
	"math"
)

// Weights describes a model's parameters.
type Weights struct {
	Shared     float64 // parameters that every token passes through, without embeddings
	Routed     float64 // of all experts that tokens are routed to
	Vocabulary float64 // of the input embedding, and again of the output head
	Tied       bool    // input embedding and output head are the same

	Experts, ExpertsPerToken int // routed; of each layer that has experts

	SharedBytes, RoutedBytes float64 // of one parameter; embeddings take 2 bytes each
}

const embeddingBytes = 2

// sameParams reports whether two models have equally many parameters in each role.
func (w Weights) sameParams(other Weights) bool {
	w.SharedBytes, w.RoutedBytes = other.SharedBytes, other.RoutedBytes
	return w == other
}

// Dense returns the weights of a model of which only the parameters are known, in BF16.
func Dense(params float64) Weights { return Weights{Shared: params, SharedBytes: 2} }

// Active returns how many parameters a token passes through, without embeddings.
func (w Weights) Active() float64 {
	if w.Experts == 0 {
		return w.Shared
	}
	return w.Shared + w.Routed*float64(w.ExpertsPerToken)/float64(w.Experts)
}

// Params returns the number of all parameters, with embeddings.
func (w Weights) Params() float64 { return w.Shared + w.Routed + w.embeddings() }

func (w Weights) embeddings() float64 {
	if w.Tied {
		return w.Vocabulary
	}
	return 2 * w.Vocabulary
}

// Mixture reports whether tokens are routed to experts.
func (w Weights) Mixture() bool { return w.Experts > w.ExpertsPerToken }

// Bytes returns the size of all weights.
func (w Weights) Bytes() float64 {
	return w.Shared*w.SharedBytes + w.Routed*w.RoutedBytes + w.embeddings()*embeddingBytes
}

// Read returns how many bytes of weights a forward pass over so many tokens reads at
// least: all but the input embedding. A pass over few tokens needs only some of the
// experts; which ones a token uses is taken as random.
func (w Weights) Read(tokens int) float64 {
	used := 1.0
	if w.Mixture() {
		used -= math.Pow(1-float64(w.ExpertsPerToken)/float64(w.Experts), float64(max(tokens, 1)))
	}
	return w.Shared*w.SharedBytes + used*w.Routed*w.RoutedBytes + w.Vocabulary*embeddingBytes
}

// Quantized returns the weights with parameters of another size, except embeddings.
func (w Weights) Quantized(bytesPerParam float64) Weights {
	w.SharedBytes, w.RoutedBytes = bytesPerParam, bytesPerParam
	return w
}

// OfSize returns the weights with parameters whose size makes them so many bytes in all.
func (w Weights) OfSize(bytes float64) (Weights, error) {
	const least, most = 0.01, 16
	layers := bytes - w.embeddings()*embeddingBytes
	if each := layers / (w.Shared + w.Routed); each > least && each <= most {
		return w.Quantized(each), nil
	}
	return w, fmt.Errorf("model: %.3g billion parameters take %.3g to %.3g GB, not %.3g", w.Params()/1e9,
		w.Quantized(least).Bytes()/1e9, w.Quantized(most).Bytes()/1e9, bytes/1e9)
}

const maxParams = 1e15

// Check returns an error that says what is wrong with the weights.
func (w Weights) Check() error {
	for _, n := range []float64{w.Shared, w.Routed, w.Vocabulary} {
		if !(n >= 0 && n <= maxParams) { // also a NaN
			return fmt.Errorf("model: parameters must be 0 to %g, not %g", maxParams, n)
		}
	}
	switch {
	case w.Active() < 1:
		return fmt.Errorf("model: parameters must be 1 to %g, not %g", maxParams, w.Active())
	case w.Routed > 0 && (w.ExpertsPerToken < 1 || w.Experts < w.ExpertsPerToken):
		return fmt.Errorf("model: %d of %d experts for each token", w.ExpertsPerToken, w.Experts)
	case !(w.SharedBytes > 0 && w.SharedBytes <= 16) || w.Routed > 0 && !(w.RoutedBytes > 0 && w.RoutedBytes <= 16):
		return fmt.Errorf("model: parameters of %g and %g bytes", w.SharedBytes, w.RoutedBytes)
	}
	return nil
}
