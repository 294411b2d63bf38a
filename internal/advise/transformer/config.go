package transformer

import (
	"bytes"
	"encoding/json"
	"errors"
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

// Parse reads a model from the content of a config.json. Of a model that also reads images
// or sound it reads the language model, and says so in the model's Note.
func Parse(text []byte) (Model, error) {
	c, err := outermost(text)
	if err != nil {
		return Model{}, fmt.Errorf("model: %w", err)
	}
	c.refuseOthers()
	c = c.language()
	m := c.model()
	if c.err != nil {
		return Model{}, fmt.Errorf("model: %w", c.err)
	}
	return m, m.Check()
}

func outermost(text []byte) (*config, error) {
	if !json.Valid(text) {
		err := json.Unmarshal(text, new(any))
		if at := (*json.SyntaxError)(nil); errors.As(err, &at) {
			line := 1 + bytes.Count(text[:min(at.Offset, int64(len(text)))], []byte("\n"))
			return nil, fmt.Errorf("not a config.json: line %d: %w", line, err)
		}
		return nil, fmt.Errorf("not a config.json: %w", err)
	}
	c := &config{}
	if err := json.Unmarshal(text, &c.fields); err != nil || c.fields == nil {
		return nil, fmt.Errorf("not a config.json: it is %s, not an object", found(text))
	}
	return c, nil
}

// language returns the part that describes the language model.
func (c *config) language() *config {
	inner := c
	for _, key := range languageKeys() {
		if inner.has(key) {
			inner = inner.object(key)
			inner.refuseOthers()
		}
	}
	if !inner.has("quantization_config") && c.has("quantization_config") {
		inner.fields = maps.Clone(inner.fields)
		inner.fields["quantization_config"] = c.fields["quantization_config"]
	}
	var senses []string
	for _, key := range []string{"vision_config", "visual", "audio_config"} {
		if c.has(key) || inner.has(key) {
			senses = append(senses, key)
		}
	}
	switch {
	case inner != c:
		inner.note("only the language model is counted (%s), not the weights and tokens of other parts", strings.TrimSuffix(inner.path, "."))
	case len(senses) > 0:
		inner.note("only the language model is counted, not the weights and tokens of %s", strings.Join(senses, " and "))
	}
	return inner
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
