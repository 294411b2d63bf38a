package policybench

import (
	"math/bits"
	"math/rand/v2"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/seed"
)

func TestOptimumByHand(t *testing.T) {
	for _, c := range []struct {
		name     string
		requests [][]int32
		capacity int
		want     int
	}{
		{"all fits", [][]int32{{0, 1}, {0, 1}, {0, 1, 2}}, 3, 4},
		{"one of two", [][]int32{{0}, {1}, {0}, {1}}, 1, 1},
		{"a new block is refused", [][]int32{{0}, {1}, {0}, {2}, {0}}, 1, 2},
		{"the prefix of a prompt", [][]int32{{0, 1, 2, 3}, {0, 1, 2, 3}}, 2, 2},
		{"a loop", [][]int32{{0}, {1}, {2}, {0}, {1}, {2}, {0}, {1}, {2}}, 2, 4},
		{"twice in a prompt", [][]int32{{0, 0}, {0, 0}}, 1, 3},
		{"nothing returns", [][]int32{{0, 1}, {2, 3}}, 2, 0},
	} {
		l := newLoad(c.name)
		l.new(10)
		for i, blocks := range c.requests {
			l.ask(float64(i), blocks)
		}
		if got, err := optimum(t.Context(), l.Trace, c.capacity); err != nil || got != c.want {
			t.Errorf("%s: %d, %v; want %d", c.name, got, err, c.want)
		}
	}
}

// best tries all that a cache may hold after each request: any of what it held and of the
// request's blocks, up to the capacity. Hits are those at the beginning of prompts.
func best(t *Trace, capacity int) int {
	most := map[uint32]int{0: 0} // by what is held
	for _, r := range t.requests {
		var asked uint32
		for _, b := range t.of(r) {
			asked |= 1 << b
		}
		next := map[uint32]int{}
		for holds, hits := range most {
			for _, b := range t.of(r) {
				if holds&(1<<b) == 0 {
					break
				}
				hits++
			}
			from := holds | asked
			for keeps := from; ; keeps = (keeps - 1) & from {
				if bits.OnesCount32(keeps) <= capacity {
					next[keeps] = max(next[keeps], hits)
				}
				if keeps == 0 {
					break
				}
			}
		}
		most = next
	}
	found := 0
	for _, hits := range most {
		found = max(found, hits)
	}
	return found
}

// On small traces the rule finds what trying everything finds, and where ids are not chained, no
// less.
func TestOptimumEqualsTryingEverything(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 4))
	for range 100 {
		chained := r.IntN(3) > 0
		const distinct = 7
		parent := make([]int32, distinct) // in a tree of prefixes
		for b := range parent {
			parent[b] = int32(r.IntN(b+1)) - 1
		}
		l := newLoad("small")
		l.new(distinct)
		for i := range 2 + r.IntN(7) {
			var prompt []int32
			if chained {
				for b := int32(r.IntN(distinct)); b >= 0; b = parent[b] {
					prompt = append([]int32{b}, prompt...)
				}
			} else {
				for _, b := range r.Perm(distinct)[:1+r.IntN(distinct)] {
					prompt = append(prompt, int32(b))
				}
			}
			l.ask(float64(i), prompt)
		}
		for capacity := 1; capacity <= distinct; capacity++ {
			want := best(l.Trace, capacity)
			got, err := optimum(t.Context(), l.Trace, capacity)
			if err != nil || got < want || chained && got != want {
				t.Fatalf("%v %v, capacity %d: %d, %v; trying everything gives %d", l.requests, l.blocks, capacity, got, err, want)
			}
			for _, c := range contenders() {
				if capacity != 3 { // making one takes longer than the trace
					break
				}
				if hits, _ := simulate(t.Context(), l.Trace, c.make(distinct, capacity)); hits > got {
					t.Fatalf("%v %v, capacity %d: %s has %d hits, the optimum %d", l.requests, l.blocks, capacity, c.name, hits, got)
				}
			}
		}
	}
}
