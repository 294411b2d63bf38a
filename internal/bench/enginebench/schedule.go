package enginebench

import "time"

// wanted is a request, as far as its time is concerned.
type wanted struct {
	arrival time.Duration
	compute time.Duration
	load    time.Duration // of its bytes, alone in the pipe
	layers  int
}

// schedule is when requests have their first token if nothing but the GPUs and the
// pipe took time: one after the other, in the order given, each layer as soon as it
// is loaded. Each arrives at its own time; where there may be only so many at once,
// those after the first as many arrive as soon as there is room. It returns each
// one's wait.
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
