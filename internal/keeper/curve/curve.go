package curve

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"time"
)

// Options describe an Estimator. The zero value of a field means its default.
type Options struct {
	// SampleKeys bounds the keys that are followed, and with them the memory: about 120
	// bytes each. The error of a hit ratio is about the inverse square root of it where
	// uses are spread, and more if few large prompts dominate. Default 8192, at most 16384.
	SampleKeys int
	// HalfLife is the time after which a use counts half. Default one hour.
	HalfLife time.Duration
}

// Point says what a cache of a size would have served.
type Point struct {
	CapacityBytes int64
	HitRatio      float64 // of uses
}

// Estimator follows uses and gives the curve. Its methods may be called concurrently.
type Estimator struct {
	mu        sync.Mutex
	o         Options
	threshold uint64            // keys whose hash is at most this are followed
	followed  map[uint64]*entry // by hash
	order     order
	decayedMs int64

	// Uses, fading. distances has those of followed keys, divided by the part of the keys
	// that was followed then, by the size of the cache that would have served them.
	uses      float64
	distances [buckets]float64
	first     float64 // first uses, which no cache serves
}

// entry is a followed key.
type entry struct {
	place     int // in order
	sizeBytes int64
	lastMs    int64
}

// Sums of sizes fit into 63 bits.
const (
	maxKeys  = 1 << 14
	maxBytes = 1 << 48
)

// forgetAfter is the number of half-lives after which an unused key is forgotten.
const forgetAfter = 8

// New returns an Estimator.
func New(o Options) *Estimator {
	o.SampleKeys = min(max(1, cmp.Or(o.SampleKeys, 8192)), maxKeys)
	o.HalfLife = max(time.Second, cmp.Or(o.HalfLife, time.Hour))
	return &Estimator{o: o, threshold: math.MaxUint64, followed: map[uint64]*entry{}, order: newOrder(2 * (o.SampleKeys + 1)), decayedMs: math.MinInt64}
}

// Use records a use of an entry: that it was read, or stored because it was not there. key
// tells entries apart and stays the same if an entry leaves and comes back. nowMs is in
// milliseconds since any epoch, by a clock that does not go back.
func (e *Estimator) Use(key uint64, sizeBytes, nowMs int64) {
	hash := mix(key)
	sizeBytes = min(max(sizeBytes, 1), maxBytes)
	e.mu.Lock()
	defer e.mu.Unlock()
	e.decay(nowMs)
	e.uses++
	if hash > e.threshold {
		return
	}
	if e.order.full() {
		e.renumber()
	}
	part := e.part()
	known := e.followed[hash]
	if known == nil {
		e.first += 1 / part
		known = &entry{}
		e.followed[hash] = known
	} else {
		others := e.order.after(known.place)
		e.order.remove(known.place, known.sizeBytes)
		e.distances[bucketOf(float64(others)/part+float64(sizeBytes))] += 1 / part
	}
	*known = entry{e.order.add(sizeBytes), sizeBytes, nowMs}
	if len(e.followed) > e.o.SampleKeys {
		e.shrink(nowMs)
	}
}

// part returns the part of all keys that is followed.
func (e *Estimator) part() float64 { return float64(e.threshold) / math.MaxUint64 }

// renumber gives the followed keys the first places, in their order.
func (e *Estimator) renumber() {
	all := make([]*entry, 0, len(e.followed))
	for _, k := range e.followed {
		all = append(all, k)
	}
	slices.SortFunc(all, func(a, b *entry) int { return cmp.Compare(a.place, b.place) })
	e.order.reset()
	for _, k := range all {
		k.place = e.order.add(k.sizeBytes)
	}
}

// shrink forgets keys that were not used for long, and if that is not enough, follows half
// as many.
func (e *Estimator) shrink(nowMs int64) {
	e.forgetUnused(nowMs)
	for len(e.followed) > e.o.SampleKeys {
		e.threshold /= 2
		e.forget(func(hash uint64, _ *entry) bool { return hash > e.threshold })
	}
}

func (e *Estimator) forgetUnused(nowMs int64) {
	oldest := nowMs - forgetAfter*e.o.HalfLife.Milliseconds()
	e.forget(func(_ uint64, k *entry) bool { return k.lastMs < oldest })
}

func (e *Estimator) forget(which func(hash uint64, k *entry) bool) {
	for hash, k := range e.followed {
		if which(hash, k) {
			e.order.remove(k.place, k.sizeBytes)
			delete(e.followed, hash)
		}
	}
}

// decay lets earlier uses count less. If fewer keys are in use than before, more of them
// are followed again.
func (e *Estimator) decay(nowMs int64) {
	halfLifeMs := e.o.HalfLife.Milliseconds()
	passed := nowMs - e.decayedMs
	if e.decayedMs == math.MinInt64 {
		e.decayedMs = nowMs
		return
	}
	if passed < max(1, halfLifeMs/64) {
		return
	}
	e.decayedMs = nowMs
	by := math.Exp2(-float64(passed) / float64(halfLifeMs))
	e.uses *= by
	e.first *= by
	for i := range e.distances {
		e.distances[i] *= by
	}
	if e.threshold == math.MaxUint64 {
		return
	}
	e.forgetUnused(nowMs)
	if len(e.followed) < e.o.SampleKeys/4 {
		e.threshold = e.threshold*2 + 1
	}
}
