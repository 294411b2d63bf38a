// Package transformer describes language models by the kinds of their layers: how much KV
// cache a prompt has and how much of it a hit needs, how many floating-point operations a
// prefill takes, and how large the weights are. Models are known by name or read from
// their config.json.
//
// # Operations
//
// A prompt of L tokens takes 2·P·L operations in matrix products, where P is the number of
// parameters that a token passes through, without embeddings: the input embedding is a
// table, and the output head sees the last token only. Attention adds, for each layer and
// each pair of a token with one that it sees, 2·heads·(key + value dimension).
//
// The number of pairs depends on the kind of layer. A token at position i sees i tokens
// with full attention, min(i, W) with a sliding window of W, and those of its own chunk
// with chunked attention. After a cached prefix of C tokens, the pairs of the tokens from
// C to L remain: they still see the prefix.
//
// DeepSeek's sparse attention picks W tokens for each one, and computes with the latent
// vectors, whose key and value are longer than those of a head (576 + 512, not 192 + 128).
// So it costs as much as a sliding window of W·(576+512)/(192+128) tokens with the heads'
// own dimensions, and engines compute shorter prompts densely. An index picks the tokens;
// it compares each token with all before it.
//
// Layers with a recurrent state (Mamba, gated delta networks) take a constant number of
// operations for each token.
//
// # KV cache
//
// A hit needs the KV of every cached token in layers with full or sparse attention, of the
// last W in layers with a window, of the last incomplete chunk in layers with chunks, and
// a single state in recurrent layers.
package transformer
