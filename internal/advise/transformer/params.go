package transformer

import "slices"

// weights counts the parameters. Norms and biases are left out: they are less than a
// thousandth.
func (c *config) weights(d dims, kinds []layerKind) Weights {
	w := Weights{
		Vocabulary: float64(c.positive("the size of the vocabulary", "vocab_size")) * float64(d.hidden),
		Tied:       c.truth("tie_word_embeddings", c.tiedByDefault()),
	}
	w.SharedBytes, w.RoutedBytes = c.quantized()
	e := c.experts(d, len(kinds))
	w.Experts, w.ExpertsPerToken = e.routed, e.perToken
	for i, kind := range kinds {
		w.Shared += c.mixer(d, kind)
		if e.layer(i) {
			w.Routed += float64(e.routed) * matrices(3, d.hidden, e.width)
			w.Shared += matrices(1, d.hidden, e.routed) + matrices(3, d.hidden, e.shared)
		} else {
			w.Shared += c.dense(d, e)
		}
	}
	if w.Routed == 0 {
		w.Experts, w.ExpertsPerToken, w.RoutedBytes = 0, 0, 0
	}
	return w
}

// matrices returns the parameters of n matrices of rows by columns.
func matrices(n, rows, columns int) float64 { return float64(n) * float64(rows) * float64(columns) }

// tiedByDefault is what transformers takes where tie_word_embeddings is missing.
func (c *config) tiedByDefault() bool {
	switch c.text("model_type") {
	case "gemma", "gemma2", "gemma3", "gemma3_text", "cohere", "cohere2", "gpt2", "starcoder2":
		return true
	}
	return false
}

// mixer returns the parameters of a layer's attention or recurrence.
func (c *config) mixer(d dims, kind layerKind) float64 {
	switch {
	case kind.Kind == State && kind.recurrence == mamba:
		inner := c.number(2, "mamba_expand") * d.hidden
		state := c.number(16, "mamba_d_state")
		rank := (d.hidden + 15) / 16
		if string(c.fields["mamba_dt_rank"]) != `"auto"` {
			rank = c.number(rank, "mamba_dt_rank")
		}
		return matrices(3, d.hidden, inner) + matrices(1, inner, rank+2*state) + matrices(1, rank, inner) + matrices(1, inner, state)
	case kind.Kind == State:
		n := c.deltaNet()
		values := n.valueHeads * n.valueDim
		return matrices(1, d.hidden, n.mixed()+values) + matrices(2, d.hidden, n.valueHeads) + matrices(1, values, d.hidden)
	case d.latent > 0:
		query := matrices(1, d.hidden, d.heads*d.keyDim)
		if d.queryRank > 0 {
			query = matrices(1, d.hidden, d.queryRank) + matrices(1, d.queryRank, d.heads*d.keyDim)
		}
		index := matrices(1, d.queryRank, d.indexHeads*d.indexDim) + matrices(1, d.hidden, d.indexDim+d.indexHeads)
		return query + index + matrices(1, d.hidden, d.latent+d.rope) +
			matrices(1, d.latent, d.heads*(d.keyDim-d.rope+d.valueDim)) + matrices(1, d.heads*d.valueDim, d.hidden)
	}
	queries := d.heads * d.keyDim
	if c.truth("attn_output_gate", c.text("model_type") == "qwen3_next") {
		queries *= 2
	}
	return matrices(1, d.hidden, queries) + matrices(1, d.hidden, d.kvHeads*(d.keyDim+d.valueDim)) + matrices(1, d.heads*d.valueDim, d.hidden)
}

// dense returns the parameters of a layer's feed-forward part without experts.
func (c *config) dense(d dims, e experts) float64 {
	width := e.denseWidth
	if width == 0 {
		width = c.number(0, "intermediate_size", "ffn_dim", "n_inner")
	}
	if width == 0 {
		c.fail("intermediate_size is missing (the width of the feed-forward part)")
	}
	if slices.Contains([]string{"starcoder2", "phi", "gpt2", "gpt_neox", "gptj", "opt", "bloom", "falcon", "mpt", "nemotron"}, c.text("model_type")) {
		return matrices(2, d.hidden, width) // not gated
	}
	return matrices(3, d.hidden, width)
}

// experts describes the feed-forward parts with experts.
type experts struct {
	routed, perToken int
	width            int // of a routed expert
	shared           int // width of all experts that every token uses
	denseWidth       int // of layers without experts, if it is not intermediate_size
	layer            func(i int) bool
}

func (c *config) experts(d dims, layers int) experts {
	e := experts{
		routed: c.number(0, "num_experts", "num_local_experts", "n_routed_experts"),
		layer:  func(int) bool { return false },
	}
	if e.routed == 0 {
		if c.has("moe_num_experts") || c.has("ffn_config") {
			c.fail("the number of experts is not given as num_experts, num_local_experts or n_routed_experts; give the shape by flags")
		}
		return e
	}
	e.perToken = c.positive("how many experts a token uses", "num_experts_per_tok", "num_experts_per_token", "moe_topk")
	if e.width = c.number(0, "moe_intermediate_size"); e.width == 0 {
		e.width = c.positive("the width of an expert", "intermediate_size")
	}
	e.shared = c.number(0, "n_shared_experts", "num_shared_experts")*e.width + c.number(0, "shared_expert_intermediate_size")
	e.layer = func(int) bool { return true }
	switch {
	case c.has("first_k_dense_replace"): // DeepSeek, Kimi, GLM
		first, every := c.number(0, "first_k_dense_replace"), max(c.number(1, "moe_layer_freq"), 1)
		e.layer = func(i int) bool { return i >= first && i%every == 0 }
	case c.has("expert_layer_period"): // Jamba
		period, offset := c.positive("how often a layer has experts", "expert_layer_period"), c.number(0, "expert_layer_offset")
		e.layer = func(i int) bool { return i%period == offset }
	case c.has("interleave_moe_layer_step"): // Llama 4
		step := c.positive("how often a layer has experts", "interleave_moe_layer_step")
		e.denseWidth, e.shared = c.number(0, "intermediate_size_mlp"), e.width
		e.layer = func(i int) bool { return (i+1)%step == 0 }
	case c.has("decoder_sparse_step"): // Qwen
		step, dense := c.positive("how often a layer has experts", "decoder_sparse_step"), c.numbers("mlp_only_layers")
		e.layer = func(i int) bool { return (i+1)%step == 0 && !slices.Contains(dense, i) }
	}
	return e
}
