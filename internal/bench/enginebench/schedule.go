package enginebench

import "time"

// wanted is a request with what decides its time.
type wanted struct {
	arrival time.Duration
	compute time.Duration
	load    time.Duration // to transfer its bytes at the full bandwidth
	layers  int
}

// schedule returns how long each request waits for its first token if only computing and
// the transfer take time. Requests are computed one after the other, in the order given, each
// layer as soon as it is loaded. Each arrives at its own time. If atOnce bounds their
// number, the requests beyond it arrive as soon as another one ends.
func schedule(requests []wanted, atOnce int) []time.Duration {
	ttft := make([]time.Duration, len(requests))
	ends := make([]time.Duration, len(requests))
	var free, loaded time.Duration
	for i, r := range requests {
		if atOnce > 0 && i >= atOnce {
			r.arrival = ends[i-atOnce]
		}
		free = max(free, r.arrival) + r.compute
		if r.load > 0 { // the last layer is computed when all is there
			loaded = max(loaded, r.arrival) + r.load
			free = max(free, loaded+r.compute/time.Duration(r.layers))
		}
		ends[i], ttft[i] = free, free-r.arrival
	}
	return ttft
}
