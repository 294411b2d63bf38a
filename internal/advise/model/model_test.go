package model

import (
	"math"
	"strings"
	"testing"
)

// The figures of clients.md 0 and of the project's cost model.
func TestBytesPerToken(t *testing.T) {
	for _, c := range []struct {
		name string
		tp   int
		want int64
	}{
		{"Llama-3.1-8B", 1, 131_072},
		{"Llama-3.1-8B", 8, 16_384},
		{"Llama-3.1-70B", 1, 327_680},
		{"Qwen2.5-14B", 1, 196_608},
		{"QwQ-32B", 1, 262_144},
		{"DeepSeek-R1", 1, 70_272},
		{"DeepSeek-R1", 8, 70_272}, // every rank holds the whole latent vector
		{"Qwen3-Coder-480B-A35B", 1, 253_952},
		{"Qwen3-30B-A3B", 8, 2 * 48 * 128 * 2}, // four heads for eight ranks: one each, twice
		{"gpt-oss-120b", 1, 2 * 36 * 8 * 64 * 2},
	} {
		s, err := Lookup(c.name)
		if err != nil {
			t.Error(err)
			continue
		}
		if got, err := s.BytesPerToken(c.tp); err != nil || got != c.want {
			t.Errorf("%s, tp %d: %d, %v; want %d", c.name, c.tp, got, err, c.want)
		}
		s.DType = FP8
		if got, _ := s.BytesPerToken(c.tp); got != c.want/2 {
			t.Errorf("%s in FP8: %d", c.name, got)
		}
	}
}

func TestLookup(t *testing.T) {
	for name, want := range map[string]string{
		"meta-llama/Llama-3.1-8B-Instruct":         "Llama-3.1-8B",
		"meta-llama/Meta-Llama-3-70B-Instruct":     "Llama-3-70B",
		"LLAMA-3.3-70b":                            "Llama-3.3-70B",
		"Qwen/Qwen3-30B-A3B-Instruct-2507-FP8":     "Qwen3-30B-A3B",
		"Qwen/Qwen2.5-7B-Instruct-1M":              "Qwen2.5-7B",
		"Qwen/QwQ-32B":                             "QwQ-32B",
		"deepseek-ai/DeepSeek-V3-0324":             "DeepSeek-V3",
		"deepseek-ai/DeepSeek-V3.1-Terminus":       "DeepSeek-V3.1",
		"deepseek-ai/DeepSeek-R1-Distill-Llama-8B": "DeepSeek-R1-Distill-Llama-8B",
		"mistralai/Mistral-7B-Instruct-v0.3":       "Mistral-7B",
		"mistralai/Mistral-Large-Instruct-2407":    "Mistral-Large-Instruct-2407",
		"mistralai/Mistral-Large-Instruct-2411":    "Mistral-Large-Instruct-2411",
		"moonshotai/Kimi-K2-Instruct-0905":         "Kimi-K2",
		"deepseek-ai/DeepSeek-R1-0528":             "DeepSeek-R1",
		"THUDM/GLM-4-32B-0414":                     "GLM-4-32B",
		"zai-org/GLM-4.5-Air-FP8":                  "GLM-4.5-Air",
		"openai/gpt-oss-20b":                       "gpt-oss-20b",
		"/models/Qwen3-32B":                        "Qwen3-32B",
		// As documents of UCM and vLLM write them.
		"DeepSeek-R1-awq":           "DeepSeek-R1",
		"Qwen/Qwen2.5-14B-Instruct": "Qwen2.5-14B",
		"Qwen3-Coder 480B":          "Qwen3-Coder-480B-A35B",
		"Qwen3-Coder-480B":          "Qwen3-Coder-480B-A35B",
		"Qwen3-235B-Instruct-2507":  "Qwen3-235B-A22B",
	} {
		if s, err := Lookup(name); err != nil || s.Name != want {
			t.Errorf("%s: %q, %v; want %s", name, s.Name, err, want)
		}
	}
	for name, want := range map[string]string{
		"deepseek-ai/DeepSeek-V3.2-Exp": "DeepSeek-V3", // another cache beside the latent
		"Llama-3.1-9B":                  "similar names: Llama-3.1-8B",
		"Mistral-Large-3":               "no shape known",
		"mistralai/Mistral-Large-2512":  "no shape known",
		"THUDM/glm-4-9b-chat-1m":        "similar names: GLM-4-9B", // with twice the KV heads
		"Qwen3-8B-nan":                  "similar names: Qwen3-8B",
		"Qwen3-8B-0x1p3":                "similar names: Qwen3-8B",
		"Qwen3-8B-2512":                 "similar names: Qwen3-8B",
		"Qwen3-8B-":                     "similar names: Qwen3-8B",
		"DeepSeek-R1-0528-Qwen3-8B":     "no shape known",
		"Kimi-K2.5":                     "similar names: Kimi-K2",
		"qwen3":                         "Qwen3-",
		"":                              "known: ",
		"temperature":                   "known: ",
		"Qwen3-30B-A22B":                "similar names: Qwen3-30B-A3B",
	} {
		if s, err := Lookup(name); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v; want an error with %q", name, s, err, want)
		}
	}
}

// The table again, as independently computed BF16 bytes per token, so that an accidental
// change of a row fails.
func TestTable(t *testing.T) {
	want := map[string]int64{
		"Llama-2-7B": 524_288, "Llama-2-13B": 819_200, "Llama-2-70B": 327_680,
		"Llama-3-8B": 131_072, "Llama-3-70B": 327_680,
		"Llama-3.1-8B": 131_072, "Llama-3.1-70B": 327_680, "Llama-3.1-405B": 516_096,
		"Llama-3.2-1B": 32_768, "Llama-3.2-3B": 114_688, "Llama-3.3-70B": 327_680,
		"Qwen2.5-0.5B": 12_288, "Qwen2.5-1.5B": 28_672, "Qwen2.5-3B": 36_864, "Qwen2.5-7B": 57_344,
		"Qwen2.5-14B": 196_608, "Qwen2.5-32B": 262_144, "Qwen2.5-72B": 327_680,
		"Qwen2.5-Coder-7B": 57_344, "Qwen2.5-Coder-32B": 262_144, "QwQ-32B": 262_144,
		"Qwen3-0.6B": 114_688, "Qwen3-1.7B": 114_688, "Qwen3-4B": 147_456, "Qwen3-8B": 147_456,
		"Qwen3-14B": 163_840, "Qwen3-32B": 262_144, "Qwen3-30B-A3B": 98_304, "Qwen3-235B-A22B": 192_512,
		"Qwen3-Coder-30B-A3B": 98_304, "Qwen3-Coder-480B-A35B": 253_952,
		"DeepSeek-V2-Lite": 31_104, "DeepSeek-V2": 69_120, "DeepSeek-V3": 70_272, "DeepSeek-V3.1": 70_272,
		"DeepSeek-R1": 70_272, "Kimi-K2": 70_272,
		"DeepSeek-R1-Distill-Qwen-1.5B": 28_672, "DeepSeek-R1-Distill-Qwen-7B": 57_344, "DeepSeek-R1-Distill-Qwen-14B": 196_608,
		"DeepSeek-R1-Distill-Qwen-32B": 262_144, "DeepSeek-R1-Distill-Llama-8B": 131_072, "DeepSeek-R1-Distill-Llama-70B": 327_680,
		"Mistral-7B": 131_072, "Mistral-Nemo": 163_840, "Mistral-Small-24B": 163_840,
		"Mistral-Large-Instruct-2407": 360_448, "Mistral-Large-Instruct-2411": 360_448,
		"Mixtral-8x7B": 131_072, "Mixtral-8x22B": 229_376,
		"GLM-4-9B": 40_960, "GLM-4-32B": 62_464, "GLM-4.5": 376_832, "GLM-4.5-Air": 188_416, "GLM-4.6": 376_832,
		"gpt-oss-20b": 49_152, "gpt-oss-120b": 73_728, "Phi-4": 204_800, "Yi-34B": 245_760,
	}
	for _, name := range Names() {
		s, err := Lookup(name)
		if err != nil {
			t.Error(err)
			continue
		}
		if got, err := s.BytesPerToken(1); err != nil || got != want[name] {
			t.Errorf("%s: %d, %v; want %d", name, got, err, want[name])
		}
	}
	if len(want) != len(Names()) {
		t.Errorf("%d models here, %d in the table", len(want), len(Names()))
	}
}

func TestEveryNameIsFound(t *testing.T) {
	for _, name := range Names() {
		s, err := Lookup(strings.ToLower(name))
		if err != nil || s.Name != name {
			t.Errorf("%s: %q, %v", name, s.Name, err)
		}
		if err := s.Check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestBadShapes(t *testing.T) {
	for _, c := range []struct {
		s    Shape
		tp   int
		want string
	}{
		{Shape{}, 1, "layers"},
		{Shape{Layers: 1}, 1, "give KV heads"},
		{Shape{Layers: 1, KVHeads: 8}, 1, "head dimension"},
		{Shape{Layers: 1, KVHeads: -1, HeadDim: 1}, 1, "positive"},
		{Shape{Layers: 1, KVHeads: math.MaxInt, HeadDim: math.MaxInt}, 1, "no more than"},
		{Shape{Layers: 1, KVHeads: 8, HeadDim: 128, LatentDim: 576}, 1, "not both"},
		{Shape{Layers: math.MaxInt, LatentDim: 576}, 1, "layers"},
		{Shape{Layers: 1, LatentDim: math.MaxInt}, 1, "MLA"},
		{Shape{Layers: 1, LatentDim: 576, DType: "int3"}, 1, `"int3"`},
		{Shape{Layers: 1, LatentDim: 576}, 0, "tensor parallelism"},
		{Shape{Layers: 1, LatentDim: 576}, math.MaxInt, "tensor parallelism"},
		{Shape{Layers: 32, KVHeads: 8, HeadDim: 128}, 3, "cannot be divided"},
	} {
		if n, err := c.s.BytesPerToken(c.tp); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v, tp %d: %d, %v; want an error with %q", c.s, c.tp, n, err, c.want)
		}
	}
}
