package transformer

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
)

// maxConfigBytes is far above any config.json.
const maxConfigBytes = 4 << 20

// ReadFile reads a model from its config.json, in the form of Hugging Face's
// transformers. An error names what the file lacks.
func ReadFile(path string) (Model, error) {
	f, err := os.Open(path)
	if err != nil {
		return Model{}, fmt.Errorf("model: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxConfigBytes+1))
	if err != nil {
		return Model{}, fmt.Errorf("model: %w", err)
	}
	if len(text) > maxConfigBytes {
		return Model{}, fmt.Errorf("model: %s is too large for a config.json", path)
	}
	m, err := Parse(text)
	if err != nil {
		return Model{}, fmt.Errorf("%s: %w", path, err)
	}
	return m, nil
}

// Parse reads a model from the content of a config.json.
func Parse(text []byte) (Model, error) {
	c := &config{}
	if err := json.Unmarshal(text, &c.fields); err != nil {
		return Model{}, fmt.Errorf("model: not a config.json: %w", err)
	}
	c.quantization = c.fields["quantization_config"]
	// Models with images or sound describe their language model apart.
	for _, key := range []string{"text_config", "llm_config", "language_config"} {
		if inner, ok := c.fields[key]; ok {
			var fields map[string]json.RawMessage
			if err := json.Unmarshal(inner, &fields); err != nil || fields == nil {
				return Model{}, fmt.Errorf("model: %s is not an object", key)
			}
			c.fields = fields
			if own, ok := fields["quantization_config"]; ok {
				c.quantization = own
			}
			break
		}
	}
	m := c.model()
	if c.err != nil {
		return Model{}, fmt.Errorf("model: %w", c.err)
	}
	return m, m.Check()
}

// config is a config.json. The first error sticks: later reads return zero.
type config struct {
	fields       map[string]json.RawMessage
	quantization json.RawMessage
	err          error
	notes        []string
}

func (c *config) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf(format, args...)
	}
}

// has reports whether a key has a value other than null.
func (c *config) has(key string) bool {
	value, ok := c.fields[key]
	return ok && string(value) != "null"
}

// number reads the first of the keys that has a value, as a count of at least 0, or
// returns fallback if none has.
func (c *config) number(fallback int, keys ...string) int {
	for _, key := range keys {
		if !c.has(key) {
			continue
		}
		var n int
		if err := json.Unmarshal(c.fields[key], &n); err != nil || n < 0 || n > maxWindow {
			c.fail("%s is %.40s, not a number that a model can have", key, c.fields[key])
			return 0
		}
		return n
	}
	return fallback
}

// positive is number for a value that must be there.
func (c *config) positive(what string, keys ...string) int {
	n := c.number(-1, keys...)
	if n < 0 {
		c.fail("%s is missing (%s)", keys[0], what)
	} else if n == 0 {
		c.fail("%s is 0 (%s)", keys[0], what)
	}
	return max(n, 1)
}

func (c *config) text(key string) (s string) {
	if c.has(key) {
		if err := json.Unmarshal(c.fields[key], &s); err != nil {
			c.fail("%s is %.40s, not a text", key, c.fields[key])
		}
	}
	return s
}

func (c *config) truth(key string, fallback bool) bool {
	if !c.has(key) {
		return fallback
	}
	var b bool
	if err := json.Unmarshal(c.fields[key], &b); err != nil {
		c.fail("%s is %.40s, not true or false", key, c.fields[key])
	}
	return b
}

// numbers reads a list of numbers.
func (c *config) numbers(key string) (list []int) {
	if c.has(key) {
		if err := json.Unmarshal(c.fields[key], &list); err != nil {
			c.fail("%s is not a list of numbers", key)
		}
	}
	return list
}

// unreadable returns keys of layers whose cost this package cannot tell, with what they
// mean.
func unreadable() map[string]string {
	return map[string]string{
		"linear_attn_config":      "linear attention",
		"hybrid_override_pattern": "Mamba-2 layers",
		"compress_ratios":         "compressed attention",
		"lightning_attention":     "lightning attention",
		"attn_type_list":          "lightning attention",
		"mamba_n_heads":           "Mamba-2 layers",
		"mamba_num_heads":         "Mamba-2 layers",
		"ssm_cfg":                 "state-space layers",
		"conv_L_cache":            "convolution layers",
		"block_configs":           "layers of different sizes",
		"swa_num_key_value_heads": "windows with heads of their own",
		"global_head_dim":         "full attention with heads of its own",
		"altup_num_inputs":        "nested layers",
	}
}

func (c *config) model() Model {
	switch {
	case c.has("dim") && c.has("n_layers"):
		c.fail("this is a params.json; give the config.json that transformers reads")
	case c.truth("is_encoder_decoder", false):
		c.fail("an encoder with a decoder has no KV cache of its prompt's tokens")
	case c.has("base_model_name_or_path"):
		c.fail("this describes an adapter; give the config.json of its base model")
	}
	meaning := unreadable()
	for _, key := range slices.Sorted(maps.Keys(meaning)) {
		if c.has(key) {
			c.fail("%s: %s cannot be calculated yet; give the shape by flags", key, meaning[key])
		}
	}
	if n := c.number(0, "num_kv_shared_layers"); n > 0 {
		c.fail("num_kv_shared_layers: layers that share KV cannot be calculated yet; give the shape by flags")
	}
	layers := c.positive("how many layers there are", "num_hidden_layers", "n_layer", "num_layers")
	if layers > maxLayers {
		c.fail("num_hidden_layers is %d; at most %d", layers, maxLayers)
		return Model{}
	}
	d := c.dims()
	kinds := c.kinds(layers)
	m := Model{Layers: layers, Kinds: c.layers(d, kinds), Weights: c.weights(d, kinds)}
	m.Note = strings.Join(c.notes, "; ")
	return m
}

// dims are the sizes that all layers share.
type dims struct {
	hidden, heads, kvHeads, keyDim, valueDim int
	// MLA
	latent, rope, queryRank int
	// Sparse attention
	indexHeads, indexDim, picked int
}

func (c *config) dims() dims {
	d := dims{
		hidden: c.positive("the width of the model", "hidden_size", "n_embd", "d_model"),
		heads:  c.positive("how many query heads a layer has", "num_attention_heads", "n_head"),
	}
	if c.latent() {
		d.latent = c.positive("the rank of the compressed KV", "kv_lora_rank")
		d.rope = c.positive("the dimension of the rotary part", "qk_rope_head_dim")
		d.keyDim = c.positive("a head's dimension without the rotary part", "qk_nope_head_dim") + d.rope
		d.valueDim = c.positive("the dimension of a head's value", "v_head_dim")
		d.queryRank = c.number(0, "q_lora_rank")
		if d.picked = c.number(0, "index_topk"); d.picked > 0 {
			d.indexHeads = c.positive("how many heads the index has", "index_n_heads")
			d.indexDim = c.positive("the dimension of the index", "index_head_dim")
		}
		return d
	}
	d.kvHeads = c.number(d.heads, "num_key_value_heads")
	if c.has("multi_query") || c.has("multi_query_group_num") || c.has("n_head_kv") {
		c.fail("the number of KV heads is not given as num_key_value_heads; give the shape by flags")
	}
	if d.keyDim = c.number(0, "head_dim"); d.keyDim == 0 {
		if d.keyDim = d.hidden / d.heads; d.keyDim*d.heads != d.hidden {
			c.fail("head_dim is missing, and hidden_size %d is no multiple of num_attention_heads %d", d.hidden, d.heads)
		}
	}
	d.valueDim = c.number(d.keyDim, "v_head_dim")
	if d.kvHeads < 1 || d.heads%d.kvHeads != 0 {
		c.fail("num_key_value_heads is %d, which does not divide num_attention_heads, %d", d.kvHeads, d.heads)
	}
	return d
}

func (c *config) latent() bool { return c.number(0, "kv_lora_rank") > 0 }

// layers groups the layers by kind.
func (c *config) layers(d dims, kinds []layerKind) []Layers {
	var all []Layers
	for _, kind := range kinds {
		l := Layers{
			Kind: kind.Kind, Window: kind.window, QueryHeads: d.heads, KeyDim: d.keyDim, ValueDim: d.valueDim,
			KVHeads: d.kvHeads, IndexHeads: d.indexHeads, IndexDim: d.indexDim,
		}
		if d.latent > 0 {
			l.LatentDim, l.LatentValueDim = d.latent+d.rope, d.latent
		}
		if kind.Kind == State {
			l = c.state(d, kind.recurrence)
		}
		if i := slices.IndexFunc(all, func(other Layers) bool { l.Count = other.Count; return l == other }); i >= 0 {
			all[i].Count++
			continue
		}
		l.Count = 1
		all = append(all, l)
	}
	return all
}

// quantized returns the size of a parameter of layers, and of experts, by the weights'
// type.
func (c *config) quantized() (shared, routed float64) {
	if len(c.quantization) == 0 || string(c.quantization) == "null" {
		return 2, 2 // engines load 32-bit weights as 16-bit ones
	}
	var q struct {
		Method string `json:"quant_method"`
		Algo   string `json:"quant_algo"`
		Bits   float64
		WBits  float64 `json:"w_bit"`
		In4    bool    `json:"load_in_4bit"`
		In8    bool    `json:"load_in_8bit"`
		Groups map[string]struct {
			Weights struct {
				Bits float64 `json:"num_bits"`
			}
		} `json:"config_groups"`
	}
	if err := json.Unmarshal(c.quantization, &q); err != nil {
		c.fail("quantization_config cannot be read: %w", err)
		return 2, 2
	}
	bits := max(q.Bits, q.WBits)
	for _, g := range q.Groups {
		bits = max(bits, g.Weights.Bits)
	}
	name := strings.ToLower(q.Method + " " + q.Algo)
	switch {
	case bits == 4:
		return int4Bytes, int4Bytes
	case bits > 0 && bits <= 16:
		return bits / 8, bits / 8
	case strings.Contains(name, "mxfp4"): // of experts only
		return 2, mxfp4Bytes
	case strings.Contains(name, "fp4") || q.In4:
		return int4Bytes, int4Bytes
	case strings.Contains(name, "fp8") || strings.Contains(name, "int8") || strings.Contains(name, "w8a8") || q.In8:
		return 1, 1
	}
	c.notes = append(c.notes, fmt.Sprintf("the size of weights in %.40q is not known; they count as 16-bit ones", strings.TrimSpace(name)))
	return 2, 2
}

// Sizes of quantized parameters with their scales.
const (
	int4Bytes  = 0.5 * 1.0625 // a 16-bit scale and a 4-bit zero point for each 64 to 128
	mxfp4Bytes = 0.5 * 1.0625 // an 8-bit scale for each 32
)
