package keeper

import "sync/atomic"

// Ages says how old something was, in buckets.
type Ages struct {
	BoundsSeconds []int64 `json:"bounds_seconds"`
	Files         []int64 `json:"files"` // at most each of the bounds old, but older than the one before; then the older ones
	SumSeconds    int64   `json:"sum_seconds"`
}

var ageBounds = [...]int64{60, 5 * 60, 15 * 60, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 3 * 24 * 3600, 7 * 24 * 3600, 30 * 24 * 3600}

// ages counts files by age.
type ages struct {
	within [len(ageBounds) + 1]atomic.Int64
	sum    atomic.Int64
}

func (a *ages) add(seconds int64) {
	seconds = max(seconds, 0)
	i := 0
	for i < len(ageBounds) && seconds > ageBounds[i] {
		i++
	}
	a.within[i].Add(1)
	a.sum.Add(seconds)
}

func (a *ages) read() Ages {
	all := Ages{BoundsSeconds: ageBounds[:], SumSeconds: a.sum.Load()}
	for i := range a.within {
		all.Files = append(all.Files, a.within[i].Load())
	}
	return all
}
