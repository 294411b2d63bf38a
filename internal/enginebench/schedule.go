package enginebench

import "time"

// schedule is when requests have their first token if nothing but the GPUs took
// time: one after the other, in the order given. Each arrives at its own time; where
// there may be only so many at once, those after the first as many arrive as soon as
// there is room. It returns each one's wait.
func schedule(service, arrivals []time.Duration, atOnce int) []time.Duration {
	ttft := make([]time.Duration, len(service))
	ends := make([]time.Duration, len(service))
	var free time.Duration
	for i, takes := range service {
		arrival := arrivals[i]
		if atOnce > 0 && i >= atOnce {
			arrival = ends[i-atOnce]
		}
		free = max(free, arrival) + takes
		ends[i], ttft[i] = free, free-arrival
	}
	return ttft
}
