package enginebench

import "time"

// schedule is when requests have their first token if nothing but the GPUs took
// time: one after the other, in the order given. Each arrives at its own time; or,
// without arrivals, when there is room for it among so many at once, the first ones
// together. It returns each one's wait.
func schedule(service, arrivals []time.Duration, atOnce int) []time.Duration {
	ttft := make([]time.Duration, len(service))
	ends := make([]time.Duration, len(service))
	var free time.Duration
	for i, takes := range service {
		var arrival time.Duration
		switch {
		case arrivals != nil:
			arrival = arrivals[i]
		case i >= atOnce:
			arrival = ends[i-atOnce]
		}
		free = max(free, arrival) + takes
		ends[i], ttft[i] = free, free-arrival
	}
	return ttft
}
