package model

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/spelling"
)

// row is a model and the words that may follow its name, besides anyTails. They include a
// version or a date only if that release is known to have this shape.
type row struct {
	Shape
	tails string // separated by spaces
}

func gqa(name string, layers, kvHeads, headDim int, tails ...string) row {
	return row{Shape{Name: name, Layers: layers, KVHeads: kvHeads, HeadDim: headDim}, strings.Join(tails, " ")}
}

func mla(name string, layers int, tails ...string) row {
	return row{Shape{Name: name, Layers: layers, LatentDim: 512 + 64}, strings.Join(tails, " ")} // compressed KV, rotary part
}

// mixed is a model whose layers keep caches of different sizes, so that no Shape describes
// it.
func mixed(name string, tails ...string) row {
	return row{Shape{Name: name}, strings.Join(tails, " ")}
}

func (r row) mixed() bool { return r.Layers == 0 }

// rows lists the known models by family.
func rows() []row {
	return []row{
		gqa("Llama-2-7B", 32, 32, 128), gqa("Llama-2-13B", 40, 40, 128), gqa("Llama-2-70B", 80, 8, 128),
		gqa("Llama-3-8B", 32, 8, 128), gqa("Llama-3-70B", 80, 8, 128),
		gqa("Llama-3.1-8B", 32, 8, 128), gqa("Llama-3.1-70B", 80, 8, 128), gqa("Llama-3.1-405B", 126, 8, 128),
		gqa("Llama-3.2-1B", 16, 8, 64), gqa("Llama-3.2-3B", 28, 8, 128),
		gqa("Llama-3.3-70B", 80, 8, 128),

		gqa("Qwen2.5-0.5B", 24, 2, 64), gqa("Qwen2.5-1.5B", 28, 2, 128), gqa("Qwen2.5-3B", 36, 2, 128),
		gqa("Qwen2.5-7B", 28, 4, 128, "1m"), gqa("Qwen2.5-14B", 48, 8, 128, "1m"), gqa("Qwen2.5-32B", 64, 8, 128),
		gqa("Qwen2.5-72B", 80, 8, 128), gqa("Qwen2.5-Coder-7B", 28, 4, 128), gqa("Qwen2.5-Coder-32B", 64, 8, 128),
		gqa("QwQ-32B", 64, 8, 128, "preview"),
		gqa("Qwen3-0.6B", 28, 8, 128), gqa("Qwen3-1.7B", 28, 8, 128), gqa("Qwen3-4B", 36, 8, 128, "thinking", "2507"),
		gqa("Qwen3-8B", 36, 8, 128), gqa("Qwen3-14B", 40, 8, 128), gqa("Qwen3-32B", 64, 8, 128),
		gqa("Qwen3-30B-A3B", 48, 4, 128, "thinking", "2507"), gqa("Qwen3-235B-A22B", 94, 4, 128, "thinking", "2507"),
		gqa("Qwen3-Coder-30B-A3B", 48, 4, 128), gqa("Qwen3-Coder-480B-A35B", 62, 8, 128),

		mla("DeepSeek-V2-Lite", 27), mla("DeepSeek-V2", 60, "0628"),
		mla("DeepSeek-V3", 61, "0324"), mla("DeepSeek-V3.1", 61, "terminus"), mla("DeepSeek-R1", 61, "zero", "0528"),
		gqa("DeepSeek-R1-Distill-Qwen-1.5B", 28, 2, 128), gqa("DeepSeek-R1-Distill-Qwen-7B", 28, 4, 128),
		gqa("DeepSeek-R1-Distill-Qwen-14B", 48, 8, 128), gqa("DeepSeek-R1-Distill-Qwen-32B", 64, 8, 128),
		gqa("DeepSeek-R1-Distill-Llama-8B", 32, 8, 128), gqa("DeepSeek-R1-Distill-Llama-70B", 80, 8, 128),
		mla("Kimi-K2", 61, "thinking", "0905"),

		gqa("Mistral-7B", 32, 8, 128, "v0.1", "v0.2", "v0.3"), gqa("Mistral-Nemo", 40, 8, 128, "2407"),
		gqa("Mistral-Small-24B", 40, 8, 128, "2501"),
		gqa("Mistral-Large-Instruct-2407", 88, 8, 128), gqa("Mistral-Large-Instruct-2411", 88, 8, 128),
		gqa("Mixtral-8x7B", 32, 8, 128, "v0.1"), gqa("Mixtral-8x22B", 56, 8, 128, "v0.1", "v0.3"),

		gqa("GLM-4-9B", 40, 2, 128, "0414"), gqa("GLM-4-32B", 61, 2, 128, "0414"),
		gqa("GLM-4.5", 92, 8, 128), gqa("GLM-4.5-Air", 46, 8, 128), gqa("GLM-4.6", 92, 8, 128),

		gqa("gpt-oss-20b", 24, 8, 64), gqa("gpt-oss-120b", 36, 8, 64),

		gqa("Phi-4", 40, 10, 128), gqa("Yi-34B", 60, 8, 128),

		mixed("Gemma-2-2B"), mixed("Gemma-2-9B"), mixed("Gemma-2-27B"),
		mixed("Gemma-3-1B", "pt"), mixed("Gemma-3-4B", "pt"), mixed("Gemma-3-12B", "pt"), mixed("Gemma-3-27B", "pt"),
		mixed("Llama-4-Scout-17B-16E"), mixed("Llama-4-Maverick-17B-128E"),
		mixed("Qwen3-Next-80B-A3B", "thinking"),
		mixed("DeepSeek-V3.2", "exp"),
		mixed("Jamba-v0.1"), mixed("Jamba-1.5-Mini"), mixed("Jamba-1.5-Large"),
	}
}

// anyTails are words that may follow any model's name. They say how it was fine-tuned or
// how its weights are stored.
const anyTails = "instruct chat base it hf fp8 fp4 nvfp4 bf16 awq gptq int4 int8 gguf w8a8 dynamic"

// Names lists the models that Lookup knows.
func Names() []string { return names(func(r row) bool { return !r.mixed() }) }

// AllNames lists the models that Identify knows.
func AllNames() []string { return names(func(row) bool { return true }) }

func names(wanted func(row) bool) (all []string) {
	for _, r := range rows() {
		if wanted(r) {
			all = append(all, r.Name)
		}
	}
	return all
}

// Lookup finds a model by its name, as in Names or as on Hugging Face. It ignores
// case, the owner before the slash, and words that are known not to change the shape
// (Instruct, FP8). Spaces count as hyphens, and the active parameters at the end of a name
// may be missing: Qwen3-Coder 480B. DType is left empty: an FP8 model usually keeps a BF16
// cache.
func Lookup(name string) (Shape, error) {
	r, _, err := find(name, Names())
	if err == nil && r.mixed() {
		return Shape{}, fmt.Errorf("model: the layers of %s keep caches of different sizes, which no single shape describes", r.Name)
	}
	return r.Shape, err
}

// Identify finds a model by its name, as Lookup does, and also one whose layers keep
// caches of different sizes. It returns the name as in AllNames, and the lower-case words
// that follow it.
func Identify(name string) (known string, words []string, err error) {
	r, words, err := find(name, AllNames())
	return r.Name, words, err
}

func find(name string, suggest []string) (found row, words []string, err error) {
	folded := strings.ToLower(name[strings.LastIndexByte(name, '/')+1:])
	for _, vendor := range []string{"meta-", "ai21-"} {
		folded = strings.TrimPrefix(folded, vendor)
	}
	folded = strings.ReplaceAll(folded, " ", "-")
	for _, r := range rows() {
		full := strings.ToLower(r.Name)
		for _, known := range []string{full, withoutActive(full)} {
			rest, ok := strings.CutPrefix(folded, known)
			if ok && len(r.Name) > len(found.Name) && r.sameShape(rest) {
				found, words = r, strings.Split(rest, "-")[1:]
			}
		}
	}
	if found.Name != "" {
		return found, words, nil
	}
	if near := spelling.Nearest(folded, suggest, 4); len(near) > 0 {
		return row{}, nil, fmt.Errorf("model: no shape known for %.80q; similar names: %s", name, strings.Join(near, ", "))
	}
	return row{}, nil, fmt.Errorf("model: no shape known for %.80q; known: %s", name, strings.Join(suggest, ", "))
}

// withoutActive removes the active parameters from the end of a name: qwen3-30b of
// qwen3-30b-a3b.
func withoutActive(name string) string {
	i := strings.LastIndex(name, "-a")
	if i < 0 || strings.Trim(name[i+2:], "0123456789") != "b" {
		return name
	}
	return name[:i]
}

// sameShape reports whether what follows a model's name leaves its shape unchanged.
func (r row) sameShape(rest string) bool {
	words := strings.Split(rest, "-")
	if words[0] != "" { // a different name that begins alike
		return false
	}
	known := strings.Fields(anyTails + " " + r.tails)
	return !slices.ContainsFunc(words[1:], func(w string) bool { return !slices.Contains(known, w) })
}
