package kv

import (
	"math"
	"math/bits"
	"sync/atomic"
	"time"
)

// LatencyBuckets is the number of buckets of a Latency. The last has no upper bound.
const LatencyBuckets = 22

const shortestBound = 32 * time.Microsecond

// LatencyBound returns the upper bound of the i-th bucket but the last: 32 µs, and
// twice as much for each further one, up to 33.6 s. For the last it returns the longest
// duration, and for what is below the first 0.
func LatencyBound(i int) time.Duration {
	switch {
	case i < 0:
		return 0
	case i >= LatencyBuckets-1:
		return math.MaxInt64
	}
	return shortestBound << i
}

// Latency is a histogram of durations.
type Latency struct {
	Count   int64                 `json:"count"`
	Sum     time.Duration         `json:"sum_ns"`
	Buckets [LatencyBuckets]int64 `json:"buckets"` // not cumulative
}

// Histogram counts durations. The zero value is ready, and any number of goroutines may
// use it.
type Histogram struct {
	sum     atomic.Int64
	buckets [LatencyBuckets]atomic.Int64
}

// Add counts a duration.
func (h *Histogram) Add(d time.Duration) {
	d = max(d, 1)
	h.sum.Add(int64(d))
	h.buckets[min(bits.Len64(uint64((d-1)/shortestBound)), LatencyBuckets-1)].Add(1)
}

// Latency returns what has been counted so far. Under concurrent Adds its Sum may
// belong to a few more or fewer durations than its buckets.
func (h *Histogram) Latency() Latency {
	l := Latency{Sum: time.Duration(h.sum.Load())}
	for i := range h.buckets {
		l.Buckets[i] = h.buckets[i].Load()
		l.Count += l.Buckets[i]
	}
	return l
}
