// Package model computes how many bytes of KV cache a token takes. It knows the shapes
// of common models by name; other shapes can be given explicitly.
package model

import (
	"errors"
	"fmt"
)

// Shape is the part of a model's configuration that decides the size of its KV
// cache. Either KVHeads and HeadDim are set (attention with a K and a V per
// head) or LatentDim alone (MLA: one latent vector for all heads).
type Shape struct {
	Name      string // as the model's publisher writes it; "" for a shape given explicitly
	Layers    int    // only those that keep KV
	KVHeads   int
	HeadDim   int
	LatentDim int   // MLA: rank of the compressed KV plus the rotary part
	DType     DType // of the KV cache, not of the weights; "" means BF16
}

// MLA reports whether K and V are one latent vector, which every rank holds in full.
func (s Shape) MLA() bool { return s.LatentDim > 0 }

// DType is an element type of KV caches.
type DType string

// The element types that engines use.
const (
	BF16 DType = "bf16"
	FP16 DType = "fp16"
	FP8  DType = "fp8"
	FP32 DType = "fp32"
)

// DTypes lists the element types.
func DTypes() []DType { return []DType{BF16, FP16, FP8, FP32} }

// Bytes returns the size of an element, 0 for a type that is not in DTypes.
func (d DType) Bytes() int64 {
	switch d {
	case "", BF16, FP16:
		return 2
	case FP8:
		return 1
	case FP32:
		return 4
	}
	return 0
}

// Bounds far above any model; products of them fit an int64.
const (
	maxLayers = 10_000
	maxWidth  = 1 << 20 // heads times head size, or the latent vector
	maxTP     = 4096
)

// Check returns an error that says what is wrong with a shape.
func (s Shape) Check() error {
	gqa := s.KVHeads != 0 || s.HeadDim != 0
	switch {
	case s.Layers < 1 || s.Layers > maxLayers:
		return fmt.Errorf("model: layers must be 1 to %d, not %d", maxLayers, s.Layers)
	case gqa && s.LatentDim != 0:
		return errors.New("model: give KV heads and head dimension, or an MLA dimension, not both")
	case !gqa && (s.LatentDim < 1 || s.LatentDim > maxWidth):
		return errors.New("model: give KV heads and head dimension, or an MLA dimension (576 for DeepSeek-V3)")
	case gqa && (s.KVHeads < 1 || s.HeadDim < 1 || s.KVHeads > maxWidth || s.HeadDim > maxWidth/s.KVHeads):
		return fmt.Errorf("model: KV heads (%d) and head dimension (%d) must be positive, and their product no more than %d", s.KVHeads, s.HeadDim, maxWidth)
	case s.DType.Bytes() == 0:
		return fmt.Errorf("model: KV type %q is not one of %v", s.DType, DTypes())
	}
	return nil
}

// BytesPerToken returns what one of tp tensor-parallel ranks keeps for a token. KV
// heads are divided among the ranks; if there are fewer heads than ranks, several
// ranks hold each head. Every rank holds MLA's latent vector in full.
func (s Shape) BytesPerToken(tp int) (int64, error) {
	if tp < 1 || tp > maxTP {
		return 0, fmt.Errorf("model: tensor parallelism must be 1 to %d, not %d", maxTP, tp)
	}
	if err := s.Check(); err != nil {
		return 0, err
	}
	if s.MLA() {
		return int64(s.Layers) * int64(s.LatentDim) * s.DType.Bytes(), nil
	}
	if big, small := max(s.KVHeads, tp), min(s.KVHeads, tp); big%small != 0 {
		return 0, fmt.Errorf("model: %d KV heads cannot be divided among %d ranks; tensor parallelism must divide that number or be a multiple of it", s.KVHeads, tp)
	}
	heads := max(s.KVHeads/tp, 1)
	return 2 * int64(s.Layers) * int64(heads) * int64(s.HeadDim) * s.DType.Bytes(), nil
}
