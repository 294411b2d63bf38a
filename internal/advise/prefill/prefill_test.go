package prefill

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/advise/model"
	"github.com/kv3fs/kv3fs/internal/advise/transformer"
)

func mustLookup(t *testing.T, name string) transformer.Model {
	t.Helper()
	m, err := transformer.Lookup(name)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func mustProfile(t *testing.T, name, gpu string, gpus int) *Profile {
	t.Helper()
	g, err := LookupGPU(gpu)
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewProfile(mustLookup(t, name), Hardware{GPU: g, Count: gpus}, 0.5)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// A measured profile reproduces UCM's whole full-compute column.
func TestMeasuredProfile(t *testing.T) {
	rows := UCM()
	if len(rows) != 32 {
		t.Fatalf("%d rows", len(rows))
	}
	for _, r := range rows {
		p, ok := MeasuredProfile(mustLookup(t, r.Model), Hardware{GPU: GPU{"H100", 989, 1979, 80, 3.35}, Count: r.GPUs})
		if !ok || !p.Measured() {
			t.Fatalf("%s: no profile", r.Model)
		}
		if off := (p.MeanTTFT(0, r.TotalTokens, r.Concurrent) - r.FullCompute).Abs(); off > time.Microsecond {
			t.Errorf("%s, %d tokens, %d at once: off by %v", r.Model, r.TotalTokens, r.Concurrent, off)
		}
		// A hit is worth the same at every concurrency.
		cached := r.TotalTokens * 8 / 10
		got := float64(r.FullCompute) / float64(p.MeanTTFT(cached, r.TotalTokens, r.Concurrent))
		if want := p.Model.IdealSpeedup(cached, r.TotalTokens); math.Abs(got/want-1) > 1e-6 {
			t.Errorf("%s, %d tokens, %d at once: ideal %.4f, want %.4f", r.Model, r.TotalTokens, r.Concurrent, got, want)
		}
	}
	for _, h := range []Hardware{
		{GPU: GPU{"H100", 989, 1979, 80, 3.35}, Count: 4},
		{GPU: GPU{"H100", 989, 1979, 80, 3.35}, Count: 2, FP8: true},
		{GPU: GPU{"H20", 148, 296, 96, 4}, Count: 2},
	} {
		if _, ok := MeasuredProfile(mustLookup(t, "QwQ-32B"), h); ok {
			t.Errorf("%v: a profile without a measurement", h)
		}
	}
	for what, change := range map[string]func(*transformer.Model){
		"parameters":  func(m *transformer.Model) { m.Weights.Shared /= 2 },
		"query heads": func(m *transformer.Model) { m.Kinds[0].QueryHeads /= 2 },
		"layers":      func(m *transformer.Model) { m.Kinds[0].Count /= 2 },
	} {
		m := mustLookup(t, "QwQ-32B")
		change(&m)
		if _, ok := MeasuredProfile(m, Hardware{GPU: GPU{"H100", 989, 1979, 80, 3.35}, Count: 2}); ok {
			t.Errorf("QwQ-32B with half the %s: a profile without a measurement", what)
		}
	}
	// The name does not count, and neither does the size of the weights.
	for name, gpus := range map[string]int{"Qwen2.5-32B-Instruct-AWQ": 2, "DeepSeek-V3": 8} {
		if _, ok := MeasuredProfile(mustLookup(t, name), Hardware{GPU: GPU{"H100", 989, 1979, 80, 3.35}, Count: gpus}); !ok {
			t.Errorf("%s has the layers and parameters of a measured model", name)
		}
	}
	m := mustLookup(t, "QwQ-32B")
	m.KVType = model.FP8
	if _, ok := MeasuredProfile(m, Hardware{GPU: GPU{"H100", 989, 1979, 80, 3.35}, Count: 2}); !ok {
		t.Error("smaller KV is not computed faster")
	}
}

// More tokens to compute never take less time, between the published figures and beyond
// them.
func TestProfileIsMonotone(t *testing.T) {
	for name, gpus := range map[string]int{"QwQ-32B": 2, "DeepSeek-R1": 8} {
		p, ok := MeasuredProfile(mustLookup(t, name), Hardware{GPU: GPU{"H100", 989, 1979, 80, 3.35}, Count: gpus})
		if !ok {
			t.Fatalf("%s: no profile", name)
		}
		for concurrent := range 20 {
			before := time.Duration(-1)
			for tokens := 0; tokens < 140_000; tokens += 97 {
				now := p.Request(0, tokens, concurrent)
				if now <= before {
					t.Fatalf("%s, %d at once: %d tokens take %v, fewer %v", name, concurrent, tokens, now, before)
				}
				before = now
			}
			before = math.MaxInt64
			for cached := 0; cached < 32_000; cached += 97 {
				now := p.Request(cached, 32_000, concurrent)
				if now >= before {
					t.Fatalf("%s, %d at once: %d cached take %v, fewer %v", name, concurrent, cached, now, before)
				}
				before = now
			}
		}
	}
}

func TestRequestEdges(t *testing.T) {
	p := mustProfile(t, "QwQ-32B", "H100", 2)
	if d := p.Request(0, 0, 1); d != 0 {
		t.Errorf("no tokens: %v", d)
	}
	if d := p.Request(-5, -1, -1); d != 0 {
		t.Errorf("fewer than none: %v", d)
	}
	last := p.Request(999, 1000, 1)
	if last <= 0 || p.Request(1000, 1000, 1) != last || p.Request(5000, 1000, 1) != last {
		t.Errorf("all cached: %v, %v, want %v", p.Request(1000, 1000, 1), p.Request(5000, 1000, 1), last)
	}
	p.Hardware.GPU.BF16TFLOPS = 1e9
	if d := p.Request(0, 1, 1); d <= 0 {
		t.Errorf("a GPU without limits: %v", d)
	}
	if d := p.Request(0, math.MaxInt, 1); d <= 0 {
		t.Errorf("an endless prompt: %v", d)
	}
	if one, many := p.MeanTTFT(0, math.MaxInt, 1), p.MeanTTFT(0, math.MaxInt, math.MaxInt); one <= 0 || many < one {
		t.Errorf("an endless prompt: %v, many at once: %v", one, many)
	}
}

// The predicted overlapped time equals a simulation of each layer's load and
// computation.
func TestOverlapIsAPipeline(t *testing.T) {
	p := mustProfile(t, "QwQ-32B", "H100", 2)
	for _, bandwidth := range []float64{1e8, 3e9, 1e10, 1e11, 1e13} {
		for _, cached := range []int{1, 8000, 25600, 31999} {
			s := Store{Pipe: Pipe{"", bandwidth}, Overhead: 5 * time.Millisecond}
			got := p.TTFT(s, cached, 32000)
			loaded, computed := s.Overhead.Seconds(), 0.0
			for range p.Model.Layers {
				loaded += got.Load.Seconds() / 64
				computed = max(computed, loaded) + got.Ideal.Seconds()/64
			}
			if math.Abs(got.Overlapped.Seconds()-computed) > 1e-6 {
				t.Errorf("%g B/s, %d cached: %v, want %.6f s", bandwidth, cached, got.Overlapped, computed)
			}
			if got.Loaded != got.Load+got.Ideal+s.Overhead || got.Overlapped > got.Loaded+64 || got.Ideal > got.Overlapped || got.Ideal > got.FullCompute {
				t.Errorf("%g B/s, %d cached: %+v", bandwidth, cached, got)
			}
		}
	}
	none := p.TTFT(Store{Pipe: Pipe{"", 1e9}, Overhead: time.Second}, 0, 32000)
	if none.Loaded != none.FullCompute || none.Overlapped != none.FullCompute || none.Ideal != none.FullCompute || none.Bound() != "compute" {
		t.Errorf("nothing cached: %+v", none)
	}
	if slow := p.TTFT(Store{Pipe: Pipe{"", 1e-9}}, 31999, 32000); slow.Loaded <= 0 || slow.Overlapped <= 0 || slow.Bound() != "load" {
		t.Errorf("a very slow pipe: %+v", slow)
	}
}

func TestWinsFrom(t *testing.T) {
	p := studied(t, "QwQ-32B", "H100", 2)
	store := func(bandwidth float64, overhead time.Duration) Store {
		return Store{Pipe: Pipe{"", bandwidth}, Overhead: overhead, BlockTokens: 16}
	}
	for _, overhead := range []time.Duration{0, time.Millisecond, 20 * time.Millisecond} {
		s := store(40<<30, overhead)
		from := p.WinsFrom(s, 1<<17)
		wins := func(n int) bool { return p.Load(s, n)+s.Overhead < p.Request(0, n, 1) }
		if from == 0 || from%16 != 0 || !wins(from) || from > 16 && wins(from-16) {
			t.Errorf("overhead %v: from %d", overhead, from)
		}
	}
	if from := p.WinsFrom(store(1e8, 0), 1<<17); from != 0 {
		t.Errorf("a slow pipe wins from %d tokens on", from)
	}
	// The rate is too low for short prompts, but high enough for long ones.
	if from := p.WinsFrom(store(3e9, 0), 1<<17); from < 30_000 || from > 35_000 {
		t.Errorf("3 GB/s wins from %d tokens on, section 3.3 says about 32K", from)
	}
	if from := p.WinsFrom(Store{Pipe: Pipe{"", 1e18}}, 100); from != 1 {
		t.Errorf("blocks of 0 tokens: from %d", from)
	}
	if from := p.WinsFrom(Store{Pipe: Pipe{"", 1e18}, BlockTokens: 128}, 100); from != 0 {
		t.Errorf("no block fits: from %d", from)
	}
}

func TestLookupGPU(t *testing.T) {
	for name, want := range map[string]string{
		"H100": "H100", "h20": "H20", "NVIDIA H100 SXM": "H100", "nvidia-l40s": "L40S", "A800": "A800",
		"Ascend 910B": "Ascend-910B", "910b": "Ascend-910B", "h100 pcie": "H100-PCIe",
		"NVIDIA GeForce RTX 4090": "RTX-4090", "4090": "RTX-4090", "RTX PRO 6000 Blackwell": "RTX-PRO-6000", "AMD Instinct MI355X": "MI355X", "gb200": "GB200", "B300": "B300", "mi300x": "MI300X",
	} {
		if g, err := LookupGPU(name); err != nil || g.Name != want {
			t.Errorf("%s: %q, %v; want %s", name, g.Name, err, want)
		}
	}
	for name, want := range map[string]string{"H10O": "similar names: H100", "": "known: H100", "TPUv5": "known: H100"} {
		if g, err := LookupGPU(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want an error with %q", name, g, err, want)
		}
	}
	for _, g := range GPUs() {
		if g.FP8TFLOPS != 0 && (g.FP8TFLOPS < 1.9*g.BF16TFLOPS || g.FP8TFLOPS > 2.1*g.BF16TFLOPS) {
			t.Errorf("%s: FP8 is twice as fast as BF16 on all GPUs that have it", g.Name)
		}
		if err := (Hardware{GPU: g, Count: 8}).Check(); err != nil {
			t.Error(err)
		}
	}
	if p, err := LookupPipe("nvme6"); err == nil || !strings.Contains(err.Error(), "nvme5") {
		t.Errorf("nvme6: %+v, %v", p, err)
	}
	if p, err := LookupPipe(""); err == nil || !strings.Contains(err.Error(), "known: 3fs") {
		t.Errorf("no name: %+v, %v", p, err)
	}
}

func TestBadProfiles(t *testing.T) {
	good := mustLookup(t, "QwQ-32B")
	h100 := GPU{"H100", 989, 1979, 80, 3.35}
	with := func(change func(*transformer.Weights)) transformer.Model {
		m := good
		change(&m.Weights)
		return m
	}
	for _, c := range []struct {
		m    transformer.Model
		h    Hardware
		mfu  float64
		want string
	}{
		{transformer.Model{}, Hardware{GPU: h100, Count: 1}, 0.5, "layers"},
		{with(func(w *transformer.Weights) { w.Shared = 0 }), Hardware{GPU: h100, Count: 1}, 0.5, "parameters"},
		{with(func(w *transformer.Weights) { w.Shared = math.NaN() }), Hardware{GPU: h100, Count: 1}, 0.5, "parameters"},
		{with(func(w *transformer.Weights) { w.Shared = math.Inf(1) }), Hardware{GPU: h100, Count: 1}, 0.5, "parameters"},
		{good, Hardware{GPU: h100, Count: 0}, 0.5, "GPUs must be"},
		{good, Hardware{GPU: h100, Count: 3}, 0.5, "8 KV heads cannot be divided among 3 ranks"},
		{good, Hardware{GPU: h100, Count: 2, TP: 3}, 0.5, "ranks must be 1 to the number of GPUs"},
		{good, Hardware{GPU: h100, Count: 2, Hosts: 3}, 0.5, "hosts must be 1 to the number of GPUs"},
		{good, Hardware{GPU: GPU{"X", 0, 0, 0, 0}, Count: 1}, 0.5, "TFLOPS of X"},
		{good, Hardware{GPU: GPU{"X", math.NaN(), 0, 0, 0}, Count: 1}, 0.5, "TFLOPS of X"},
		{good, Hardware{GPU: GPU{"A100", 312, 0, 80, 2.039}, Count: 1, FP8: true}, 0.5, "no FP8 speed is known for A100"},
		{good, Hardware{GPU: h100, Count: 1}, 0, "MFU"},
		{good, Hardware{GPU: h100, Count: 1}, 1.5, "MFU"},
		{good, Hardware{GPU: h100, Count: 1}, math.NaN(), "MFU"},
	} {
		if p, err := NewProfile(c.m, c.h, c.mfu); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v on %v at %g: %v, %v; want an error with %q", c.m, c.h, c.mfu, p, err, c.want)
		}
	}
}

// A pass over few tokens takes as long as reading the weights that they need.
func TestFloor(t *testing.T) {
	for _, c := range []struct {
		name   string
		gpu    string
		gpus   int
		tokens int
		want   float64 // ms
	}{
		{"QwQ-32B", "H100", 2, 1, 64 / 6.7},
		{"QwQ-32B", "H100", 2, 5000, 64 / 6.7},
		{"DeepSeek-R1", "H20", 8, 5000, 671 / 32.0},
		{"DeepSeek-R1", "H20", 8, 1, 37.55 / 32.0},                        // only the active experts
		{"Qwen3-30B-A3B", "H20-3e", 1, 0, 0},                              // no pass
		{"Mixtral-8x7B", "A100", 1, 2, 2 * (12.9 + 33.8*2.0/8.0) / 2.039}, // the second token adds 1.5 of the 6 idle experts on average
	} {
		p := mustProfile(t, c.name, c.gpu, c.gpus)
		got := p.Floor(c.tokens).Seconds() * 1e3
		if math.Abs(got-c.want) > 0.01*c.want {
			t.Errorf("%s, %d tokens: %.3f ms, want %.3f", c.name, c.tokens, got, c.want)
		}
		if hit := p.Request(9999, 10_000, 1); hit < p.Floor(1) {
			t.Errorf("%s: a hit takes %v, less than reading the weights", c.name, hit)
		}
	}
	p := mustProfile(t, "QwQ-32B", "H100", 2)
	if hit, whole := p.Request(31_999, 32_000, 1), p.Request(0, 32_000, 1); hit != p.Floor(1) || whole <= 100*hit {
		t.Errorf("a hit of all but one token takes %v, the whole prompt %v", hit, whole)
	}
	p.Hardware.GPU.MemoryTBps = 0
	if p.Floor(5000) != 0 {
		t.Error("a floor without a known bandwidth")
	}
}

// Equal layers, parameters and peaks give equal answers: the name decides nothing.
func TestEqualCostsGiveEqualAnswers(t *testing.T) {
	for _, pair := range [][2]string{{"DeepSeek-V3", "DeepSeek-R1"}, {"QwQ-32B", "Qwen2.5-32B"}} {
		a, b := mustLookup(t, pair[0]), mustLookup(t, pair[1])
		if PlausibleMFU(a) != PlausibleMFU(b) {
			t.Errorf("%v: %+v and %+v", pair, PlausibleMFU(a), PlausibleMFU(b))
		}
		for _, gpu := range []string{"H100", "H800"} { // of the same peak
			pa, pb := mustProfile(t, pair[0], gpu, 8), mustProfile(t, pair[1], "H100", 8)
			s := Store{Pipe: Pipe{"", 1e10}, Overhead: time.Millisecond, BlockTokens: 128}
			if x, y := pa.TTFT(s, 25_600, 32_000), pb.TTFT(s, 25_600, 32_000); x != y {
				t.Errorf("%v on %s: %+v and %+v", pair, gpu, x, y)
			}
		}
	}
}

// At the bandwidth and at the MFU that break even, loading takes as long as computing.
func TestBreakEvenIsOfTheHit(t *testing.T) {
	for _, name := range []string{"QwQ-32B", "DeepSeek-R1", "Gemma-3-27B", "Llama-4-Scout-17B-16E", "Qwen3-Next-80B-A3B", "Jamba-v0.1", "DeepSeek-V3.2", "Mistral-7B"} {
		for _, hit := range []int{1024, 16_384, 30_720} {
			p := mustProfile(t, name, "H100", 8)
			s := Store{Overhead: time.Millisecond, BlockTokens: 128}
			rate, ok := p.BreakEven(s, hit, 32_768)
			if !ok {
				t.Errorf("%s, %d: no bandwidth is enough", name, hit)
				continue
			}
			s.Pipe.BytesPerSecond = rate
			if got := p.TTFT(s, hit, 32_768); math.Abs(got.Loaded.Seconds()/got.FullCompute.Seconds()-1) > 1e-6 {
				t.Errorf("%s, %d: %v loaded, %v computed, at %g B/s", name, hit, got.Loaded, got.FullCompute, rate)
			}
			if turn := p.TurningMFU(s, hit, 32_768); math.Abs(turn-0.5) > 1e-4 {
				t.Errorf("%s, %d: turns at %g, and breaks even at 0.5", name, hit, turn)
			}
			s.Pipe.BytesPerSecond = rate * 1e6
			if turn := p.TurningMFU(s, hit, 32_768); turn < 0.5 {
				t.Errorf("%s, %d: a fast pipe turns at %g", name, hit, turn)
			}
			s.Pipe.BytesPerSecond = rate / 1e6
			if turn := p.TurningMFU(s, hit, 32_768); turn != 0 {
				t.Errorf("%s, %d: a slow pipe turns at %g", name, hit, turn)
			}
		}
	}
	p := mustProfile(t, "QwQ-32B", "H100", 2)
	if rate, ok := p.BreakEven(Store{Overhead: time.Hour}, 16_384, 32_768); ok {
		t.Errorf("an hour of overhead breaks even at %g", rate)
	}
	if rate, ok := p.BreakEven(Store{}, 0, 32_768); ok {
		t.Errorf("no hit breaks even at %g", rate)
	}
	if turn := p.TurningMFU(Store{Pipe: Pipe{"", 1e18}}, 16_384, 32_768); turn != 1 {
		t.Errorf("a pipe without limits turns at %g", turn)
	}
}
