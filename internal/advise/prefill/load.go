package prefill

import (
	"fmt"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/spelling"
)

// Pipe is a link over which an engine instance loads KV cache.
type Pipe struct {
	Name           string
	BytesPerSecond float64
}

// Pipes lists the known pipes. Their rates are line rates, except for 3fs, whose rate is
// one at which a single 3FS client has been seen to read.
func Pipes() []Pipe {
	return []Pipe{
		{"3fs", 40 << 30},
		{"400gbe", 50e9}, {"200gbe", 25e9}, {"100gbe", 12.5e9},
		{"nvme4", 7e9}, {"nvme5", 14e9},
		{"pcie5", 64e9}, // 16 lanes of one GPU
	}
}

// LookupPipe finds a pipe by name. It ignores case.
func LookupPipe(name string) (Pipe, error) {
	var names []string
	for _, p := range Pipes() {
		if strings.EqualFold(p.Name, name) {
			return p, nil
		}
		names = append(names, p.Name)
	}
	if near := spelling.Nearest(name, names, 4); len(near) > 0 {
		return Pipe{}, fmt.Errorf("unknown bandwidth name %.40q; similar names: %s", name, strings.Join(near, ", "))
	}
	return Pipe{}, fmt.Errorf("unknown bandwidth name %.40q; known: %s", name, strings.Join(names, ", "))
}

// Store describes what an instance loads from, and how.
type Store struct {
	Pipe         Pipe
	Overhead     time.Duration // of a load of any size
	BlockTokens  int           // tokens of a block; zero is one
	WholeWindows bool          // layers with a window load every cached token
}

// LoadBytes returns what all ranks together load for a hit of cachedTokens.
func (p *Profile) LoadBytes(s Store, cachedTokens int) int64 {
	bytes, _ := p.Model.HitBytes(p.Hardware.Ranks(), cachedTokens, max(s.BlockTokens, 1), s.WholeWindows) // NewProfile has checked the ranks
	return bytes
}

// Load returns how long the bytes of a hit take, without overhead.
func (p *Profile) Load(s Store, cachedTokens int) time.Duration {
	return seconds(float64(p.LoadBytes(s, cachedTokens)) / s.Pipe.BytesPerSecond)
}

// TTFT holds the time to the first token of one request, processed in several ways.
type TTFT struct {
	FullCompute time.Duration // nothing is loaded
	Loaded      time.Duration // first everything is loaded, then the rest is computed
	Overlapped  time.Duration // each layer is computed while the next ones load
	Ideal       time.Duration // the cached prefix costs nothing
	Load        time.Duration // the load alone, without overhead
}

// Bound returns which part of an overlapped request takes longer, "load" or "compute".
func (t TTFT) Bound() string {
	if t.Load > t.Ideal {
		return "load"
	}
	return "compute"
}

// TTFT predicts the times of a request of totalTokens whose first cachedTokens are in
// the store. A request without cached tokens has no overhead.
func (p *Profile) TTFT(s Store, cachedTokens, totalTokens int) TTFT {
	t := TTFT{
		FullCompute: p.Request(0, totalTokens, 1),
		Ideal:       p.Request(cachedTokens, totalTokens, 1),
		Load:        p.Load(s, cachedTokens),
	}
	t.Loaded, t.Overlapped = t.Ideal, t.Ideal
	if cachedTokens > 0 {
		t.Loaded += t.Load + s.Overhead
		t.Overlapped = max(t.Ideal, t.Load) + min(t.Ideal, t.Load)/time.Duration(p.Model.Layers) + s.Overhead
	}
	return t
}

// BreakEven returns the bandwidth, in bytes per second, above which a request of
// totalTokens takes less time if its first cachedTokens are loaded before the rest is
// computed than if all of it is computed. It returns false if no bandwidth is enough.
func (p *Profile) BreakEven(s Store, cachedTokens, totalTokens int) (bytesPerSecond float64, ok bool) {
	spared := p.Request(0, totalTokens, 1) - p.Request(cachedTokens, totalTokens, 1) - s.Overhead
	bytes := p.LoadBytes(s, cachedTokens)
	if spared <= 0 || bytes == 0 {
		return 0, false
	}
	return float64(bytes) / spared.Seconds(), true
}

// TurningMFU returns the MFU up to which a request of totalTokens takes less time if its
// first cachedTokens are loaded before the rest is computed than if all of it is computed:
// an engine that reaches more should compute. It returns 1 if loading is faster at any
// MFU, and 0 if it is at none above 0.001.
func (p *Profile) TurningMFU(s Store, cachedTokens, totalTokens int) float64 {
	wins := func(mfu float64) bool {
		other := &Profile{Model: p.Model, Hardware: p.Hardware, mfu: [][]float64{{mfu}}, concurrencies: []int{1}, lengths: []int{1}}
		t := other.TTFT(s, cachedTokens, totalTokens)
		return t.Loaded < t.FullCompute
	}
	low, high := 0.001, 1.0
	switch {
	case cachedTokens <= 0 || !wins(low):
		return 0
	case wins(high):
		return 1
	}
	for range 40 {
		if middle := (low + high) / 2; wins(middle) {
			low = middle
		} else {
			high = middle
		}
	}
	return low
}

// WinsFrom returns the shortest prefix, in whole blocks, such that loading it or any
// longer one, up to limitTokens, takes less time than computing its share of a longer
// prompt, without overlap. It returns 0 if there is none.
func (p *Profile) WinsFrom(s Store, limitTokens int) int {
	block := max(s.BlockTokens, 1)
	shortest := 0
	for n := limitTokens / block * block; n > 0; n -= block {
		// The weights are read for the rest of the prompt in any case, so Floor does not count.
		computed := seconds(p.Model.FLOPs(0, n) / (p.Hardware.FLOPS() * p.MFU(n, 1)))
		if p.Load(s, n)+s.Overhead >= computed {
			break
		}
		shortest = n
	}
	return shortest
}
