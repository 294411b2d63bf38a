package policy

import (
	"container/heap"
	"iter"
	"slices"
	"time"
)

// Candidate is an entry that may leave. ID is the caller's.
type Candidate[K any] struct {
	ID        K
	Heat      Heat
	SizeBytes int64
}

// Select returns the candidates that leave so that at least needBytes become free: those
// with the lowest scores, lowest first, and no more of them than necessary. Of equal
// scores the one that comes first leaves first. Together they may have less than
// needBytes if the candidates have less.
//
// It passes over the candidates once and keeps only those that it may return.
func Select[K any](candidates iter.Seq[Candidate[K]], needBytes int64, bonus time.Duration) []Candidate[K] {
	if needBytes <= 0 {
		return nil
	}
	var chosen victims[K]
	var bytes int64
	seen := 0
	for c := range candidates {
		v := victim[K]{c, c.Heat.Score(bonus), seen}
		seen++
		if bytes >= needBytes && !v.before(chosen[0]) {
			continue
		}
		heap.Push(&chosen, v)
		bytes += c.SizeBytes
		for bytes-chosen[0].SizeBytes >= needBytes {
			bytes -= heap.Pop(&chosen).(victim[K]).SizeBytes
		}
	}
	slices.SortFunc(chosen, func(a, b victim[K]) int {
		if a.before(b) {
			return -1
		}
		return 1
	})
	out := make([]Candidate[K], len(chosen))
	for i, v := range chosen {
		out[i] = v.Candidate
	}
	return out
}

type victim[K any] struct {
	Candidate[K]
	score Score
	seen  int
}

func (v victim[K]) before(w victim[K]) bool {
	return v.score < w.score || v.score == w.score && v.seen < w.seen
}

// victims is a heap whose first element leaves last.
type victims[K any] []victim[K]

func (v victims[K]) Len() int           { return len(v) }
func (v victims[K]) Less(i, j int) bool { return v[j].before(v[i]) }
func (v victims[K]) Swap(i, j int)      { v[i], v[j] = v[j], v[i] }
func (v *victims[K]) Push(x any)        { *v = append(*v, x.(victim[K])) }

func (v *victims[K]) Pop() any {
	last := len(*v) - 1
	x := (*v)[last]
	*v = (*v)[:last]
	return x
}
