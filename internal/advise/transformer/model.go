package transformer

import (
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kv3fs/kv3fs/internal/advise/model"
)

// Model is a language model. Copies share their Kinds, which must not be changed.
type Model struct {
	Name    string // as the model's publisher writes it; "" if it is not known by name
	Layers  int    // of all kinds
	Kinds   []Layers
	KVType  model.DType // of the KV cache, not of the weights; "" means BF16
	Weights Weights
	// Note says what a reader should know about how the model was read, "" if nothing.
	Note string
}

// SameCost reports whether two models have equal layers and weights, whatever their names.
func (m Model) SameCost(other Model) bool {
	return slices.Equal(m.Kinds, other.Kinds) && m.Weights.sameParams(other.Weights)
}

// Check returns an error that says what is wrong with a model.
func (m Model) Check() error {
	if len(m.Kinds) == 0 {
		return errors.New("model: no layers")
	}
	if m.KVType.Bytes() == 0 {
		return fmt.Errorf("model: KV type %q is not one of %v", m.KVType, model.DTypes())
	}
	total := 0
	for _, l := range m.Kinds {
		if err := l.Check(); err != nil {
			return fmt.Errorf("model: %w", err)
		}
		total += l.Count
	}
	if total != m.Layers || total > maxLayers {
		return fmt.Errorf("model: %d layers in %d kinds; %d in all, of at most %d", m.Layers, len(m.Kinds), total, maxLayers)
	}
	return m.Weights.Check()
}

// Uniform returns a model whose layers are all alike.
func Uniform(l Layers, w Weights) Model {
	return Model{Layers: l.Count, Kinds: []Layers{l}, Weights: w}
}

// MLA reports whether the layers with attention keep a latent vector.
func (m Model) MLA() bool { return slices.ContainsFunc(m.Kinds, Layers.mla) }

// FLOPs returns the number of floating-point operations for a prompt of totalTokens whose
// first cachedTokens are cached.
func (m Model) FLOPs(cachedTokens, totalTokens int) float64 {
	cached, total := float64(cachedTokens), float64(totalTokens)
	sum := 2 * m.Weights.Active() * (total - cached)
	for _, l := range m.Kinds {
		sum += float64(l.Count) * (l.flops(total) - l.flops(cached))
	}
	return sum
}

// IdealSpeedup returns how many times fewer operations a prompt takes if its first
// cachedTokens cost nothing.
func (m Model) IdealSpeedup(cachedTokens, totalTokens int) float64 {
	rest := m.FLOPs(cachedTokens, totalTokens)
	if rest <= 0 {
		return math.Inf(1)
	}
	return m.FLOPs(0, totalTokens) / rest
}

// Ranks are the tensor-parallel ranks of an engine instance. Hosts is on how many hosts
// they run; zero is one.
type Ranks struct{ TP, Hosts int }

// copies returns how often the ranks together load what one rank holds. A latent vector
// is loaded once for all ranks of a host. A KV head is loaded once for each rank that
// holds it.
func (r Ranks) copies(l Layers) int64 {
	if l.mla() {
		return int64(max(r.Hosts, 1))
	}
	return int64(r.TP)
}

// RankBytesPerToken returns what one rank keeps for a token in all layers. KV heads are
// divided among the ranks; if there are fewer heads than ranks, several ranks hold each
// head.
func (m Model) RankBytesPerToken(r Ranks) (int64, error) {
	return m.sum(r, func(Layers) (tokens, copies int64) { return 1, 1 })
}

// BytesPerToken returns what all ranks together keep and load for a token in all layers.
func (m Model) BytesPerToken(r Ranks) (int64, error) {
	return m.sum(r, func(l Layers) (tokens, copies int64) { return 1, r.copies(l) })
}

// HitBytes returns what all ranks together load for a hit of cachedTokens, in blocks of
// blockTokens. If whole, layers with windows or chunks load every cached token, as engines
// do that give all layers the same blocks.
func (m Model) HitBytes(r Ranks, cachedTokens, blockTokens int, whole bool) (int64, error) {
	if cachedTokens <= 0 {
		return 0, nil
	}
	bytes, err := m.sum(r, func(l Layers) (tokens, copies int64) {
		if whole {
			return int64(cachedTokens), r.copies(l)
		}
		return int64(l.needed(cachedTokens, max(blockTokens, 1))), r.copies(l)
	})
	return bytes + m.StateBytes(), err
}

// StateBytes returns the size of the states of recurrent layers, on all ranks together.
func (m Model) StateBytes() (bytes int64) {
	for _, l := range m.Kinds {
		if l.Kind == State {
			bytes += int64(l.Count) * l.StateBytes
		}
	}
	return bytes
}

// sum adds up the KV of all layers, of so many tokens and copies in each.
func (m Model) sum(r Ranks, of func(Layers) (tokens, copies int64)) (bytes int64, err error) {
	if r.TP < 1 || r.TP > maxTP {
		return 0, fmt.Errorf("model: tensor parallelism must be 1 to %d, not %d", maxTP, r.TP)
	}
	for _, l := range m.Kinds {
		each, err := l.rankBytes(r.TP, m.KVType.Bytes())
		if err != nil {
			return 0, fmt.Errorf("model: %w", err)
		}
		tokens, copies := of(l)
		bytes += int64(l.Count) * each * tokens * copies
	}
	return bytes, nil
}

// Windowed reports whether some layers need only a part of a cached prefix.
func (m Model) Windowed() bool {
	return slices.ContainsFunc(m.Kinds, func(l Layers) bool { return l.Kind == Sliding || l.Kind == Chunked })
}

// LayerBytesPerToken returns what all ranks together keep for a token in one layer. It
// fails if not all layers keep the same.
func (m Model) LayerBytesPerToken(r Ranks) (int64, error) {
	all, err := m.BytesPerToken(r)
	if err != nil {
		return 0, err
	}
	var first int64
	for i, l := range m.Kinds {
		one := Model{Kinds: []Layers{l}, KVType: m.KVType}
		bytes, err := one.BytesPerToken(r)
		if err != nil {
			return 0, err
		}
		each := bytes / int64(l.Count)
		if i == 0 {
			first = each
		}
		if each == 0 || each != first {
			return 0, fmt.Errorf("model: not all layers of %s keep the same KV for a token", m.Name)
		}
	}
	return all / int64(m.Layers), nil
}
