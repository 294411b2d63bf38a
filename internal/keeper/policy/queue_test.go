package policy

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// Two queues over the same links are what two slices are, while links are added.
func TestQueuesEqualSlices(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	var links Links
	queues := [2]Queue{NewQueue(&links), NewQueue(&links)}
	var want [2][]int32
	for step := range 3000 {
		k := r.IntN(2)
		q := &queues[k]
		switch slot := int32(len(links)); {
		case r.IntN(3) == 0 || len(want[k]) == 0:
			links = append(links, Link{})
			q.Push(slot)
			want[k] = append(want[k], slot)
		case r.IntN(3) == 0:
			if got := q.Pop(); got != want[k][0] {
				t.Fatalf("step %d: popped %d; want %d", step, got, want[k][0])
			}
			want[k] = want[k][1:]
		default: // to the other one
			i := r.IntN(len(want[k]))
			slot = want[k][i]
			q.Remove(slot)
			queues[1-k].Push(slot)
			want[k] = slices.Delete(want[k], i, i+1)
			want[1-k] = append(want[1-k], slot)
		}
		for k := range queues {
			var got []int32
			for at := queues[k].Oldest(); at != NoSlot; at = queues[k].Newer(at) {
				got = append(got, at)
			}
			if !slices.Equal(got, want[k]) || queues[k].Len() != len(got) {
				t.Fatalf("step %d: queue %d has %v (%d); want %v", step, k, got, queues[k].Len(), want[k])
			}
		}
	}
}
