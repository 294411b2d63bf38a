// Package prefill predicts how long it takes to compute a prompt's KV cache, and how
// long to load it, from floating-point operations and bytes.
//
// # Cost
//
// A prefill of L tokens takes 2·P·L + a·L²/2 operations. P is the number of parameters
// that a token passes through. The second term is attention, where each token attends
// to those before it, and a = 2·heads·(key + value dimension)·layers. After a cached
// prefix of C tokens, the difference of two such sums is left: the tail still attends
// to the whole prompt. The time is the operations divided by the GPUs' peak times MFU,
// the part of the peak that an engine reaches.
//
// # Concurrent requests
//
// UCM's published figures are the mean TTFT of c requests that arrive together.
// Prefills that run one after the other, s each, end at s, 2s, ... cs. Their mean is
// s·(c+1)/2, which is 1.5, 2.5 and 4.5 times s for 2, 4 and 8. The published means are
// 1.43 to 1.51, 2.7 to 3.0 and 4.8 to 6.3 times the single one: close, and higher where
// batches share steps and decode tokens of earlier requests come in between. So a
// [Profile] runs requests one after the other, each at the MFU that gives the published
// mean:
//
//	s(c) = published(c) · 2/(c+1)
//
// This reproduces the whole column exactly. A partial prefill takes that share of s(c)
// that its operations have in the whole prompt's, so the ideal speed-up of a hit is the
// same at every c. MFU is interpolated over the logarithms of the published lengths and
// concurrencies; outside them it is that of the nearest point.
//
// # Loading
//
// A hit's bytes are those of all ranks together, with MLA's latent vector counted once.
// If the load comes before the computation, a request takes the sum of both. If each
// layer is computed while later ones load, it takes the longer of the two plus one
// layer of the shorter: nothing overlaps the load of the first layer, nor, where loading
// takes longer, the computation of the last.
package prefill
