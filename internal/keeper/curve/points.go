package curve

import "math"

// Sizes fall into buckets, each up to an eighth of an octave larger than the one before.
const (
	perOctave = 8
	buckets   = 62*perOctave + 1
)

// bucketOf returns the first bucket whose upper end is at least so many bytes.
func bucketOf(sizeBytes float64) int {
	i := int(math.Ceil(math.Log2(max(1, sizeBytes)) * perOctave))
	return min(i, buckets-1)
}

// upperEnd returns the largest size of a bucket, in bytes.
func upperEnd(i int) int64 { return int64(math.Exp2(float64(i) / perOctave)) }

// Curve returns the curve: a point at each size where more would have been served than at
// the one before, smallest first. A cache larger than the last would have served no more.
// Without a hit there is no point.
func (e *Estimator) Curve() []Point {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countPassed()
	var hits float64
	for _, n := range e.distances {
		hits += n
	}
	if hits == 0 {
		return nil
	}
	// The sample may have more or less than its part of the uses if few keys have many.
	// Those are used often, so what is missing belongs to the smallest size, and what is
	// too much, too (SHARDS-adj of the paper).
	missing := e.uses - hits - e.first
	var points []Point
	served, last := missing, 0.0
	for i, n := range e.distances {
		served += n
		if ratio := min(served/e.uses, 1); n > 0 && ratio > last {
			points = append(points, Point{upperEnd(i), ratio})
			last = ratio
		}
	}
	return points
}

// Served returns which part of the uses were hits, as Use was told, and how many uses that is
// about, all fading as the curve's.
func (e *Estimator) Served() (hitRatio, uses float64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.countPassed()
	if e.uses == 0 {
		return 0, 0
	}
	return e.hits / e.uses, e.uses
}

// HitRatio returns what a cache of a size would have served.
func (e *Estimator) HitRatio(capacityBytes int64) float64 {
	ratio := 0.0
	for _, p := range e.Curve() {
		if p.CapacityBytes > capacityBytes {
			// Uses are taken to be spread evenly over their bucket.
			upper := float64(p.CapacityBytes)
			lower := upper / math.Exp2(1./perOctave)
			return ratio + (p.HitRatio-ratio)*max(0, float64(capacityBytes)-lower)/(upper-lower)
		}
		ratio = p.HitRatio
	}
	return ratio
}

// mix spreads a key over all bits (the finalizer of MurmurHash3), so that callers may use
// counters as well as hashes.
func mix(key uint64) uint64 {
	key = (key ^ key>>33) * 0xff51afd7ed558ccd
	key = (key ^ key>>33) * 0xc4ceb9fe1a85ec53
	return key ^ key>>33
}
