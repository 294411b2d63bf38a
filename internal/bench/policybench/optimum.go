package policybench

import (
	"container/heap"
	"context"
)

const none = int32(-1)

// optimum returns the most hits that any policy can have that knows the whole trace.
//
// It is Belady's rule, applied once after each request: of the blocks held and those of
// the request, the capacity keeps the ones that are requested again soonest, and may
// refuse new ones. Each stretch between two requests for a block is then kept or not, at
// most a capacity of them at a time, and dropping the one that ends last gives the most of
// them: the rule is optimal for blocks of one size.
//
// It counts every block of a request that is held. Where equal ids mean equal prefixes, a
// block's predecessors are requested whenever it is, so the rule need never keep a block
// without them, and the hits are those at the beginning of prompts: the optimum is exact. In a
// trace whose ids are not chained, or where a prompt has a block twice (which counts as a
// hit), it is an upper bound.
func optimum(ctx context.Context, t *Trace, capacity int) (hits int, err error) {
	next := t.nextRequests()
	keptFor := make([]int32, t.DistinctBlocks) // the request that a held block waits for, or none
	asked := make([]int32, t.DistinctBlocks)   // the last request for a block, or none
	for b := range keptFor {
		keptFor[b], asked[b] = none, none
	}
	var order soonestLast // and blocks that are no longer kept for that request
	held := 0
	for i, r := range t.requests {
		if i%1024 == 0 && ctx.Err() != nil {
			return 0, ctx.Err()
		}
		for at := r.first; at < r.last; at++ {
			b := t.blocks[at]
			switch {
			case asked[b] == int32(i): // the second time in this prompt
				hits++
				continue
			case keptFor[b] != none:
				hits++
				held--
			}
			asked[b], keptFor[b] = int32(i), next[at]
			if next[at] != none {
				heap.Push(&order, kept{next[at], b})
				held++
			}
		}
		for held > capacity {
			if last := heap.Pop(&order).(kept); keptFor[last.block] == last.request {
				keptFor[last.block] = none
				held--
			}
		}
	}
	return hits, nil
}

// nextRequests returns for each reference the number of the next request for the block, or
// none.
func (t *Trace) nextRequests() []int32 {
	next := make([]int32, len(t.blocks))
	upcoming := make([]int32, t.DistinctBlocks)
	for b := range upcoming {
		upcoming[b] = none
	}
	for i := len(t.requests) - 1; i >= 0; i-- {
		r := t.requests[i]
		for at := r.first; at < r.last; at++ {
			next[at] = upcoming[t.blocks[at]]
		}
		for _, b := range t.of(r) {
			upcoming[b] = int32(i)
		}
	}
	return next
}

// kept is a block that is held for a request.
type kept struct{ request, block int32 }

// soonestLast is a heap with the block first that is requested last.
type soonestLast []kept

func (s soonestLast) Len() int           { return len(s) }
func (s soonestLast) Less(i, j int) bool { return s[i].request > s[j].request }
func (s soonestLast) Swap(i, j int)      { s[i], s[j] = s[j], s[i] }
func (s *soonestLast) Push(x any)        { *s = append(*s, x.(kept)) }

func (s *soonestLast) Pop() any {
	last := (*s)[len(*s)-1]
	*s = (*s)[:len(*s)-1]
	return last
}
