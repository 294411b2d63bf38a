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

// Store describes what an instance loads from, and how much it loads.
type Store struct {
	Pipe          Pipe
	BytesPerToken int64         // of the whole instance
	Overhead      time.Duration // of a load of any size
}

// TokensPerSecond returns the rate at which KV cache loads, in tokens, without overhead.
func (s Store) TokensPerSecond() float64 { return s.Pipe.BytesPerSecond / float64(s.BytesPerToken) }

// Load returns how long the bytes of a prefix take, without overhead.
func (s Store) Load(tokens int) time.Duration {
	return seconds(float64(max(tokens, 0)) / s.TokensPerSecond())
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
		Load:        s.Load(cachedTokens),
	}
	t.Loaded, t.Overlapped = t.Ideal, t.Ideal
	if cachedTokens > 0 {
		t.Loaded += t.Load + s.Overhead
		t.Overlapped = max(t.Ideal, t.Load) + min(t.Ideal, t.Load)/time.Duration(p.Model.Layers) + s.Overhead
	}
	return t
}

// BreakEven returns the bandwidth, in bytes per second, above which loading a prompt of
// totalTokens takes less time than computing it.
func (p *Profile) BreakEven(bytesPerToken int64, totalTokens int) float64 {
	return float64(bytesPerToken) * p.TokensPerSecond(totalTokens)
}

// WinsFrom returns the shortest prefix, in whole blocks, such that loading it or any
// longer one, up to limitTokens, takes less time than computing it, without overlap. It
// returns 0 if there is none.
func (p *Profile) WinsFrom(s Store, blockTokens, limitTokens int) int {
	blockTokens = max(blockTokens, 1)
	shortest := 0
	for n := limitTokens / blockTokens * blockTokens; n > 0; n -= blockTokens {
		if s.Load(n)+s.Overhead >= p.Request(0, n, 1) {
			break
		}
		shortest = n
	}
	return shortest
}
