package prefill

import (
	"fmt"
	"strings"
	"time"

	"github.com/kv3fs/kv3fs/internal/spelling"
)

// Pipe is a way that KV comes, for a whole instance of an engine.
type Pipe struct {
	Name           string
	BytesPerSecond float64
}

// Pipes lists those with a name: line rates, and what one client of 3FS has been
// seen to read.
func Pipes() []Pipe {
	return []Pipe{
		{"3fs", 40 << 30},
		{"400gbe", 50e9}, {"200gbe", 25e9}, {"100gbe", 12.5e9},
		{"nvme4", 7e9}, {"nvme5", 14e9},
		{"pcie5", 64e9}, // 16 lanes of one GPU
	}
}

// LookupPipe finds a pipe by name; case does not count.
func LookupPipe(name string) (Pipe, error) {
	var names []string
	for _, p := range Pipes() {
		if strings.EqualFold(p.Name, name) {
			return p, nil
		}
		names = append(names, p.Name)
	}
	if near := spelling.Nearest(name, names, 4); len(near) > 0 {
		return Pipe{}, fmt.Errorf("prefill: no pipe known as %.40q; near it: %s", name, strings.Join(near, ", "))
	}
	return Pipe{}, fmt.Errorf("prefill: no pipe known as %.40q; known: %s", name, strings.Join(names, ", "))
}

// Store is where an instance loads from, and what it loads.
type Store struct {
	Pipe          Pipe
	BytesPerToken int64         // of the whole instance
	Overhead      time.Duration // of a load, whatever its size
}

// TokensPerSecond is how fast tokens come, once they do.
func (s Store) TokensPerSecond() float64 { return s.Pipe.BytesPerSecond / float64(s.BytesPerToken) }

// Load is how long the bytes of a prefix take.
func (s Store) Load(tokens int) time.Duration {
	return seconds(float64(max(tokens, 0)) / s.TokensPerSecond())
}

// TTFT is the time to the first token of one request, done in several ways.
type TTFT struct {
	FullCompute time.Duration // nothing is loaded
	Loaded      time.Duration // first all is loaded, then the rest computed
	Overlapped  time.Duration // each layer is computed while the next ones load
	Ideal       time.Duration // what was cached costs nothing
	Load        time.Duration // alone, without overhead
}

// Bound says what an overlapped request waits for longer.
func (t TTFT) Bound() string {
	if t.Load > t.Ideal {
		return "load"
	}
	return "compute"
}

// TTFT predicts a request of totalTokens whose first cachedTokens are in the store.
// A request with none is computed without asking the store.
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

// BreakEven is the bandwidth, in bytes per second, from which on loading a prompt
// of totalTokens takes less time than computing it.
func (p *Profile) BreakEven(bytesPerToken int64, totalTokens int) float64 {
	return float64(bytesPerToken) * p.TokensPerSecond(totalTokens)
}

// WinsFrom is the shortest prefix, in whole blocks, from which on loading takes
// less time than computing, with nothing to hide the load behind: it and every
// longer one up to limitTokens. 0 if there is none.
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
