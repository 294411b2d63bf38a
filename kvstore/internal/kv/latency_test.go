package kv

import (
	"math"
	"testing"
	"time"
)

func TestHistogramPutsDurationsBelowTheirBounds(t *testing.T) {
	for _, c := range []struct {
		d      time.Duration
		bucket int
	}{
		{-time.Second, 0}, {0, 0}, {1, 0}, {LatencyBound(0), 0}, {LatencyBound(0) + 1, 1},
		{LatencyBound(1), 1}, {LatencyBound(1) + 1, 2}, {LatencyBound(20), 20}, {LatencyBound(20) + 1, 21}, {time.Hour, 21},
	} {
		var h Histogram
		h.Add(c.d)
		l := h.Latency()
		if l.Count != 1 || l.Buckets[c.bucket] != 1 || l.Sum != max(c.d, 1) {
			t.Errorf("%v: %+v; want it in bucket %d", c.d, l, c.bucket)
		}
	}
	if LatencyBound(-1) != 0 || LatencyBound(LatencyBuckets-1) != math.MaxInt64 || LatencyBound(1<<40) != math.MaxInt64 {
		t.Error("a bucket has a bound that is not its own")
	}
	if last := LatencyBound(LatencyBuckets - 2); last < 30*time.Second || last > time.Minute {
		t.Errorf("the last bound is %v; want it to separate the default timeout, 30 s, from longer waits", last)
	}
}
