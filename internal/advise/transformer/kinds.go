package transformer

import (
	"encoding/json"
	"fmt"
)

// layerKind is one layer's kind. A State layer names its recurrence.
type layerKind struct {
	Kind
	window     int
	recurrence string
}

// The recurrences.
const (
	mamba    = "mamba"
	deltaNet = "gated delta network"
)

// kinds returns the kind of each layer.
func (c *config) kinds(layers int) []layerKind {
	kinds := make([]layerKind, layers)
	rule := c.rule(layers)
	for i := range kinds {
		kinds[i] = rule(i)
		if k := &kinds[i]; k.Kind == Sliding || k.Kind == Chunked {
			if longest := c.number(0, "max_position_embeddings"); longest > 0 && k.window >= longest {
				*k = layerKind{Kind: Full}
			}
		}
	}
	return kinds
}

// rule returns which kind the layer of an index has.
func (c *config) rule(layers int) func(i int) layerKind {
	full := layerKind{Kind: Full}
	if c.latent() {
		if picked := c.number(0, "index_topk"); picked > 0 {
			full = layerKind{Kind: Sparse, window: picked}
		}
	}
	every := func(n, offset int, that, others layerKind) func(int) layerKind {
		return func(i int) layerKind {
			if i%n == offset {
				return that
			}
			return others
		}
	}
	kind := c.text("model_type")
	switch {
	case c.has("layer_types"):
		return c.listed("layer_types", layers, full)
	case c.has("layers_block_type"):
		return c.listed("layers_block_type", layers, full)
	case c.has("full_attention_interval"): // Qwen3-Next
		n := c.positive("how often a layer has full attention", "full_attention_interval")
		return every(n, n-1, full, layerKind{Kind: State, recurrence: deltaNet})
	case c.has("attn_layer_period"): // Jamba
		n := c.positive("how often a layer has attention", "attn_layer_period")
		return every(n, c.number(0, "attn_layer_offset"), full, layerKind{Kind: State, recurrence: mamba})
	case c.has("attention_chunk_size"): // Llama 4
		return c.chunked(full)
	case !c.has("sliding_window") || !c.truth("use_sliding_window", true):
		return func(int) layerKind { return full }
	}
	local := layerKind{Kind: Sliding, window: c.window()}
	switch kind {
	case "gemma2", "gpt_oss":
		return every(2, 0, local, full)
	case "gemma3", "gemma3_text":
		n := max(c.number(6, "sliding_window_pattern"), 1)
		return every(n, n-1, full, local)
	case "cohere2":
		n := max(c.number(4, "sliding_window_pattern"), 1)
		return every(n, n-1, full, local)
	case "qwen2", "qwen2_moe", "qwen3", "qwen3_moe":
		from := c.number(0, "max_window_layers")
		return func(i int) layerKind {
			if i < from {
				return full
			}
			return local
		}
	}
	if c.has("sliding_window_pattern") {
		c.fail("sliding_window_pattern: which layers of a %q model have the window is not known here; its config.json should have layer_types", kind)
	}
	return func(int) layerKind { return local } // Mistral 7B v0.1
}

func (c *config) window() int {
	return c.positive("the size of the window", "sliding_window", "sliding_window_size")
}

// listed reads a list with a word for each layer.
func (c *config) listed(key string, layers int, full layerKind) func(int) layerKind {
	var words []string
	if err := json.Unmarshal(c.fields[key], &words); err != nil || len(words) != layers {
		c.fail("%s does not have one word for each of the %d layers", key, layers)
		return func(int) layerKind { return full }
	}
	known := make([]layerKind, layers)
	for i, word := range words {
		switch word {
		case "full_attention", "attention":
			known[i] = full
		case "sliding_attention":
			known[i] = layerKind{Kind: Sliding, window: c.window()}
		case "chunked_attention":
			known[i] = layerKind{Kind: Chunked, window: c.positive("the size of the chunks", "attention_chunk_size")}
		case "linear_attention":
			known[i] = layerKind{Kind: State, recurrence: deltaNet}
		case "mamba":
			known[i] = layerKind{Kind: State, recurrence: mamba}
		default:
			c.fail("%s: layers of the kind %.40q cannot be calculated yet; give the shape by flags", key, word)
		}
	}
	return func(i int) layerKind { return known[i] }
}

// chunked reads which layers of Llama 4 see only their chunk: those with rotary positions.
func (c *config) chunked(full layerKind) func(int) layerKind {
	local := layerKind{Kind: Chunked, window: c.positive("the size of the chunks", "attention_chunk_size")}
	rotary := c.numbers("no_rope_layers")
	interval := max(c.number(4, "no_rope_layer_interval"), 1)
	return func(i int) layerKind {
		if i < len(rotary) && rotary[i] == 0 || len(rotary) == 0 && (i+1)%interval == 0 {
			return full
		}
		return local
	}
}

// state returns a recurrent layer. Its state is in 32-bit floats, that of its convolution
// in 16-bit ones.
func (c *config) state(d dims, recurrence string) Layers {
	if recurrence == mamba {
		inner := c.positive("how much wider Mamba is than the model", "mamba_expand") * d.hidden
		state := c.positive("the size of Mamba's state", "mamba_d_state")
		conv := c.positive("the length of Mamba's convolution", "mamba_d_conv")
		return Layers{
			Kind: State, StateBytes: 4*int64(inner)*int64(state) + 2*int64(inner)*int64(conv-1),
			FLOPsPerToken: 6 * float64(inner) * float64(state), // decay, add the input, read
		}
	}
	n := c.deltaNet()
	return Layers{
		Kind: State, StateBytes: 4*int64(n.valueHeads)*int64(n.keyDim)*int64(n.valueDim) + 2*int64(n.mixed())*int64(n.conv-1),
		FLOPsPerToken: 6 * float64(n.valueHeads) * float64(n.keyDim) * float64(n.valueDim), // recall, update, read
	}
}

// deltaDims are the sizes of a gated delta network.
type deltaDims struct{ keyHeads, valueHeads, keyDim, valueDim, conv int }

// mixed is the width of its convolution: queries, keys and values.
func (n deltaDims) mixed() int { return 2*n.keyHeads*n.keyDim + n.valueHeads*n.valueDim }

func (c *config) deltaNet() deltaDims {
	return deltaDims{
		keyHeads:   c.positive("key heads of linear attention", "linear_num_key_heads"),
		valueHeads: c.positive("value heads of linear attention", "linear_num_value_heads"),
		keyDim:     c.positive("key dimension of linear attention", "linear_key_head_dim"),
		valueDim:   c.positive("value dimension of linear attention", "linear_value_head_dim"),
		conv:       c.positive("length of its convolution", "linear_conv_kernel_dim"),
	}
}

// String describes the layers: "52 with a sliding window of 1024 tokens".
func (l Layers) String() string {
	switch l.Kind {
	case Sliding:
		return fmt.Sprintf("%d with a sliding window of %d tokens", l.Count, l.Window)
	case Chunked:
		return fmt.Sprintf("%d with chunks of %d tokens", l.Count, l.Window)
	case Sparse:
		return fmt.Sprintf("%d with sparse attention to %d tokens", l.Count, l.Window)
	case State:
		return fmt.Sprintf("%d with a recurrent state", l.Count)
	}
	return fmt.Sprintf("%d with full attention", l.Count)
}
