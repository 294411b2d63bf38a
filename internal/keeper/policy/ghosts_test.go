package policy

import (
	"sync"
	"testing"
)

func TestGhostsRememberAndForget(t *testing.T) {
	g := NewGhosts(1 << 12)
	for key := range uint64(500) {
		g.Leave(key, int(key%7))
	}
	for key := range uint64(500) {
		if got, want := g.Return(key), min(max(1, int(key%7)), MaxUses); got != want {
			t.Fatalf("key %d returns with %d uses; want %d", key, got, want)
		}
		if got := g.Return(key); got != 0 {
			t.Fatalf("key %d returns a second time with %d uses", key, got)
		}
		g.Leave(key, 2)
	}
	if got := g.Return(1000); got != 0 {
		t.Errorf("a key that never left returns with %d uses", got)
	}
	for key := range uint64(100_000) { // 24 times what it can hold
		g.Leave(1<<32+key, 1)
	}
	for key := range uint64(500) {
		if g.Return(key) > 0 {
			t.Fatalf("key %d is remembered after many others", key)
		}
	}
	recent := 0
	for key := range uint64(1000) {
		if g.Return(1<<32+99_000+key) > 0 {
			recent++
		}
	}
	if recent < 990 {
		t.Errorf("only %d of the last 1000 keys are remembered, of 4096 that fit", recent)
	}
}

// Keys of one bucket: the one that left first is forgotten first, and one that returns
// leaves its place to another.
func TestGhostsOfOneBucket(t *testing.T) {
	g := NewGhosts(1)
	for key := range uint64(8) {
		g.Leave(key, 1)
	}
	g.Leave(0, 3)
	g.Return(5)
	g.Leave(8, 1)
	g.Leave(9, 1)
	for key, want := range []int{3, 0, 1, 1, 1, 0, 1, 1, 1, 1} {
		if got := g.Return(uint64(key)); got != want {
			t.Errorf("key %d: %d uses; want %d", key, got, want)
		}
	}
}

func TestGhostsConcurrently(t *testing.T) {
	g := NewGhosts(64)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for key := range uint64(2000) {
				g.Leave(key, 3)
				if uses := g.Return(key); uses != 0 && uses != 3 {
					t.Errorf("key %d returns with %d uses", key, uses)
				}
			}
		})
	}
	all.Wait()
}
