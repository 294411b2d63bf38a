package curve

import (
	"cmp"
	"math"
	"slices"
	"sync"
	"sync/atomic"
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
	threshold atomic.Uint64    // keys whose hash is at most this are followed; changed under mu
	fadeMs    atomic.Int64     // when uses fade next; changed under mu
	passed    [2]atomic.Uint64 // uses that are not in uses yet: hits, and others

	mu       sync.Mutex
	o        Options
	followed map[uint64]*entry // by hash
	order    order
	fadedMs  int64 // when they did last

	// Uses, fading. distances has those of followed keys, divided by the part of the keys
	// that was followed then, by the size of the cache that would have served them.
	uses, hits float64 // of all keys; hits as the caller says
	distances  [buckets]float64
	first      float64 // first uses, which no cache serves
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
	e := &Estimator{o: o, followed: map[uint64]*entry{}, order: newOrder(2 * (o.SampleKeys + 1)), fadedMs: math.MinInt64}
	e.fadeMs.Store(math.MinInt64)
	e.threshold.Store(math.MaxUint64)
	return e
}

// Use records a use of an entry: that it was read, or stored because it was not there. key
// tells entries apart and stays the same if an entry leaves and comes back. nowMs is in
// milliseconds since any epoch, by a clock that does not go back. hit says whether the
// cache had it; only Served goes by that.
//
// A use of a key that is not followed costs a hash, a count and two comparisons.
func (e *Estimator) Use(key uint64, sizeBytes, nowMs int64, hit bool) {
	hash := mix(key)
	e.Pass(nowMs, hit)
	if hash > e.threshold.Load() {
		return
	}
	sizeBytes = min(max(sizeBytes, 1), maxBytes)
	e.mu.Lock()
	defer e.mu.Unlock()
	if hash > e.threshold.Load() {
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

// Follows reports whether uses of a key tell more than Pass does. That may change with each
// use.
func (e *Estimator) Follows(key uint64) bool { return mix(key) <= e.threshold.Load() }

// Pass records a use of a key that is not followed.
func (e *Estimator) Pass(nowMs int64, hit bool) {
	if hit {
		e.passed[0].Add(1)
	} else {
		e.passed[1].Add(1)
	}
	if nowMs >= e.fadeMs.Load() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.fade(nowMs)
	}
}

// part returns the part of all keys that is followed.
func (e *Estimator) part() float64 { return float64(e.threshold.Load()) / math.MaxUint64 }

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
		threshold := e.threshold.Load() / 2
		e.threshold.Store(threshold)
		e.forget(func(hash uint64, _ *entry) bool { return hash > threshold })
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

// fade lets earlier uses count less. If fewer keys are in use than before, more of them
// are followed again.
func (e *Estimator) fade(nowMs int64) {
	if nowMs < e.fadeMs.Load() {
		return
	}
	halfLifeMs := e.o.HalfLife.Milliseconds()
	e.fadeMs.Store(nowMs + max(1, halfLifeMs/64))
	e.countPassed()
	last := e.fadedMs
	if e.fadedMs = nowMs; last == math.MinInt64 {
		return
	}
	by := math.Exp2(-float64(nowMs-last) / float64(halfLifeMs))
	e.uses *= by
	e.hits *= by
	e.first *= by
	for i := range e.distances {
		e.distances[i] *= by
	}
	threshold := e.threshold.Load()
	if threshold == math.MaxUint64 {
		return
	}
	e.forgetUnused(nowMs)
	if len(e.followed) < e.o.SampleKeys/4 {
		e.threshold.Store(threshold*2 + 1)
	}
}

// countPassed counts the uses since the last time.
func (e *Estimator) countPassed() {
	hits := float64(e.passed[0].Swap(0))
	e.hits += hits
	e.uses += hits + float64(e.passed[1].Swap(0))
}
