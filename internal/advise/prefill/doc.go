// Package prefill predicts how long it takes to compute a prompt's KV cache, and how
// long to load it, from floating-point operations and bytes.
//
// # Cost
//
// The operations of a prefill, divided by the GPUs' peak rate and by MFU, the share of the
// peak that an engine reaches, are its time. Package transformer counts the operations. No
// forward pass is shorter than reading the weights once from GPU memory. What share of the
// peak is plausible depends on the kind of model only (PlausibleMFU), so that equal layers,
// parameters and peaks give equal times.
//
// # Concurrent requests
//
// UCM's published figures are the mean TTFT of c requests that arrive together.
// Prefills that run one after the other and take s each end at s, 2s, ... cs. The mean is
// s·(c+1)/2, which is 1.5, 2.5 and 4.5 times s for 2, 4 and 8 requests. The published
// means are 1.43 to 1.51, 2.7 to 3.0 and 4.8 to 6.3 times that of a single request: close,
// and higher where batches share steps with the decoding of earlier requests. So a
// [Profile] runs requests one after the other, each at the MFU that gives the published
// mean:
//
//	s(c) = published(c) · 2/(c+1)
//
// This reproduces the whole column exactly. The time of a partial prefill is s(c) times
// its share of the whole prompt's operations, so the ideal speed-up of a hit is the same
// at every c. MFU is interpolated over the logarithms of the published lengths and
// concurrencies; outside their range it is that of the nearest point.
//
// # Loading
//
// A hit's size is that of all ranks together, with MLA's latent vector counted once. If
// the load comes before the computation, a request takes the sum of both times. If each
// layer is computed while later ones load, it takes the longer of the two times plus one
// layer of the shorter: nothing overlaps the load of the first layer or, if loading takes
// longer, the computation of the last.
package prefill
