// Package histogram counts durations in buckets, for metrics. It is made to be cheap: what happens together is counted together.
package histogram

import (
	"sync/atomic"
	"time"
)

// Histogram counts durations. Its methods may be called concurrently.
type Histogram struct {
	bounds []time.Duration
	within []atomic.Int64
	sum    atomic.Int64
	latest []atomic.Pointer[Example] // nil: none are kept
}

// Example is one of the durations of a bucket, with what can be looked at because of it.
type Example struct {
	Took time.Duration
	At   time.Time
	File uint64 // inode number; 0: none
	PID  int    // 0: unknown
}

// New returns an empty histogram. bounds ascend; each is the largest duration of its bucket, and one more bucket has what is
// longer. The histogram keeps bounds.
func New(bounds []time.Duration) *Histogram {
	return &Histogram{bounds: bounds, within: make([]atomic.Int64, len(bounds)+1)}
}

// NewWithExamples is New for a histogram that keeps the latest example of each bucket.
func NewWithExamples(bounds []time.Duration) *Histogram {
	h := New(bounds)
	h.latest = make([]atomic.Pointer[Example], len(bounds)+1)
	return h
}

// Bucket returns the bucket that a duration falls in.
func Bucket(bounds []time.Duration, d time.Duration) int {
	i := 0
	for i < len(bounds) && d > bounds[i] {
		i++
	}
	return i
}

// Observe counts one duration. A negative one counts as 0.
func (h *Histogram) Observe(d time.Duration) {
	d = max(d, 0)
	h.Add(Bucket(h.bounds, d), 1, d)
}

// Add counts n durations of a bucket that are sum together.
func (h *Histogram) Add(bucket int, n int64, sum time.Duration) {
	h.within[bucket].Add(n)
	h.sum.Add(int64(sum))
}

// Merge adds what another histogram with the same bounds has counted.
func (h *Histogram) Merge(from *Histogram) {
	for i := range h.within {
		h.within[i].Add(from.within[i].Load())
	}
	h.sum.Add(from.sum.Load())
	for i := range min(len(h.latest), len(from.latest)) {
		if e := from.latest[i].Load(); e != nil {
			h.latest[i].Store(e)
		}
	}
}

// Total returns how many durations there are.
func (h *Histogram) Total() (n int64) {
	for i := range h.within {
		n += h.within[i].Load()
	}
	return n
}

// Show keeps an example that was counted.
func (h *Histogram) Show(e Example) { h.latest[Bucket(h.bounds, e.Took)].Store(&e) }

// Count is what a histogram has counted.
type Count struct {
	Bounds   []time.Duration
	Within   []int64 // by bucket, one more than Bounds
	Sum      time.Duration
	Examples []*Example // by bucket, nil where there is none; nil: none are kept
}

// Count returns what was counted. What is counted meanwhile may be in one part of it and not in the other.
func (h *Histogram) Count() Count {
	c := Count{Bounds: h.bounds, Within: make([]int64, len(h.within)), Sum: time.Duration(h.sum.Load())}
	for i := range h.within {
		c.Within[i] = h.within[i].Load()
	}
	if h.latest != nil {
		c.Examples = make([]*Example, len(h.latest))
		for i := range h.latest {
			c.Examples[i] = h.latest[i].Load()
		}
	}
	return c
}

// Total returns how many durations there are.
func (c Count) Total() (n int64) {
	for _, w := range c.Within {
		n += w
	}
	return n
}
