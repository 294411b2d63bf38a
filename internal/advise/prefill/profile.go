package prefill

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/transformer"
	"github.com/kv3fs/kv3fs/internal/invariants"
)

// Profile predicts how long an engine's prefills take. It is immutable, so goroutines
// may share it.
type Profile struct {
	Model    transformer.Model
	Hardware Hardware
	mfu      [][]float64 // by concurrency, then by length; a single value without measurements
	// The grid on which mfu was measured, ascending.
	concurrencies, lengths []int
}

// NewProfile returns a profile with the same MFU for all prompts.
func NewProfile(m transformer.Model, h Hardware, mfu float64) (*Profile, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	if err := h.Check(); err != nil {
		return nil, err
	}
	if _, err := m.RankBytesPerToken(h.Ranks()); err != nil {
		return nil, err
	}
	if !(mfu > 0 && mfu <= 1) {
		return nil, fmt.Errorf("prefill: MFU must be above 0 and at most 1, not %g", mfu)
	}
	return &Profile{Model: m, Hardware: h, mfu: [][]float64{{mfu}}, concurrencies: []int{1}, lengths: []int{1}}, nil
}

// checkGrid asserts that the grid is ascending and has a value at every point.
func (p *Profile) checkGrid() {
	if !invariants.Enabled {
		return
	}
	invariants.Check(slices.IsSorted(p.concurrencies) && slices.IsSorted(p.lengths), "grid of %v by %v is not ascending", p.concurrencies, p.lengths)
	invariants.Check(len(p.mfu) == len(p.concurrencies), "%d rows for %d concurrencies", len(p.mfu), len(p.concurrencies))
	for i, row := range p.mfu {
		invariants.Check(len(row) == len(p.lengths), "row %d has %d values for %d lengths", i, len(row), len(p.lengths))
	}
}

// Measured reports whether the profile is fitted to published figures.
func (p *Profile) Measured() bool { return len(p.lengths) > 1 }

// MFU returns the share of the peak rate that is reached for a prompt of totalTokens when
// that many concurrent requests arrive together.
func (p *Profile) MFU(totalTokens, concurrent int) float64 {
	i, rest := between(p.concurrencies, concurrent)
	at := func(i int) float64 {
		j, rest := between(p.lengths, totalTokens)
		row := p.mfu[i]
		return row[j] + rest*(row[min(j+1, len(row)-1)]-row[j])
	}
	low := at(i)
	return low + rest*(at(min(i+1, len(p.mfu)-1))-low)
}

// between locates x in an ascending grid. It returns the index of the point before x, and
// the logarithmic position of x between that point and the next.
func between(grid []int, x int) (i int, rest float64) {
	for i+1 < len(grid) && x >= grid[i+1] {
		i++
	}
	if i+1 == len(grid) || x <= grid[i] {
		return i, 0
	}
	return i, math.Log(float64(x)/float64(grid[i])) / math.Log(float64(grid[i+1])/float64(grid[i]))
}

// Request returns how long the GPUs work on one prompt of totalTokens whose first
// cachedTokens are cached, if that many concurrent requests arrive together and run one
// after the other. The last token of a prompt is always computed, for its output, and no
// pass is shorter than Floor.
func (p *Profile) Request(cachedTokens, totalTokens, concurrent int) time.Duration {
	if totalTokens < 1 {
		return 0
	}
	cachedTokens = max(min(cachedTokens, totalTokens-1), 0)
	took := seconds(p.Model.FLOPs(cachedTokens, totalTokens) / (p.Hardware.FLOPS() * p.MFU(totalTokens, concurrent)))
	return max(took, p.Floor(totalTokens-cachedTokens), 1) // callers divide by it
}

// Floor returns the least time of a forward pass over so many tokens, in which the GPUs
// read the weights once from their memory. It is 0 if the memory's bandwidth is unknown.
func (p *Profile) Floor(tokens int) time.Duration {
	bandwidth := p.Hardware.MemoryBytesPerSecond()
	if bandwidth == 0 || tokens < 1 {
		return 0
	}
	return seconds(p.Model.Weights.Read(tokens) / bandwidth)
}

// BytesPerToken returns what all ranks together keep and load for a token.
func (p *Profile) BytesPerToken() int64 {
	bytes, _ := p.Model.BytesPerToken(p.Hardware.Ranks()) // NewProfile has checked the ranks
	return bytes
}

// MeanTTFT returns the mean TTFT of concurrent requests, as in Request, that wait only for
// the GPUs.
func (p *Profile) MeanTTFT(cachedTokens, totalTokens, concurrent int) time.Duration {
	return seconds(p.Request(cachedTokens, totalTokens, concurrent).Seconds() * (float64(max(concurrent, 1)) + 1) / 2)
}

// TokensPerSecond returns the rate at which a prompt of totalTokens is prefilled.
func (p *Profile) TokensPerSecond(totalTokens int) float64 {
	return float64(totalTokens) / p.Request(0, totalTokens, 1).Seconds()
}

// seconds converts to a duration. It saturates.
func seconds(s float64) time.Duration {
	if ns := s * 1e9; ns < math.MaxInt64/4 {
		return time.Duration(math.Round(ns))
	}
	return math.MaxInt64 / 4 // leaves room to add a few
}
