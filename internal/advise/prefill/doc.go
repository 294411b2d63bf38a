// Package prefill is the arithmetic of computing a prompt's KV against loading it:
// floating-point operations and bytes in, times out.
//
// # Cost
//
// A prefill of L tokens takes 2·P·L + a·L²/2 operations: P parameters that a token
// passes through, and attention, where a = 2·heads·(key + value dimension)·layers,
// each token looking at those before it. Behind a cached prefix of C tokens what
// is left is the difference of two such sums: the tail still looks at the whole
// prompt. Time is operations over the GPUs' peak times MFU, the part of the peak
// that an engine reaches.
//
// # Many at once
//
// UCM's published figures are the mean TTFT of c requests that arrive together.
// Prefills that run one after the other, s each, end at s, 2s, ... cs: their mean
// is s·(c+1)/2, which is 1.5, 2.5 and 4.5 times s for 2, 4 and 8. The published
// means are 1.43 to 1.51, 2.7 to 3.0 and 4.8 to 6.3 times the single one: close,
// and above it where batches share steps and tokens of those that have begun come
// in between. So a [Profile] runs requests one after the other, each at the MFU
// that gives the published mean:
//
//	s(c) = published(c) · 2/(c+1)
//
// which gives the whole column back exactly. A partial prefill takes the share of
// s(c) that its operations are of the whole prompt's, so that the ideal speed-up
// of a hit is the same at every c. Between the published lengths and concurrencies
// MFU is interpolated over their logarithms, outside it is the nearest one's.
//
// # Loading
//
// A hit's bytes are those of all ranks together, MLA's latent vector once. Where
// the load comes before the computing, a request takes their sum. Where each layer
// is computed while later ones load, it takes the longer of the two and one layer
// of the shorter: the first layer's load is hidden by nothing, and neither is the
// last layer's computing where loading is what takes longer.
//
// It is pure: no files, no clock, no network.
package prefill
