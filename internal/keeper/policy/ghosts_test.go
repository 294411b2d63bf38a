package policy

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/kv3fs/kv3fs/internal/test/seed"
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

func marshaled(t testing.TB, g *Ghosts) []byte {
	t.Helper()
	b, err := g.MarshalBinary()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// What is remembered, and in which order it is forgotten, outlives the table; it takes few bytes.
func TestGhostsAreRestored(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 4))
	for range 50 {
		g := NewGhosts(1 << r.IntN(10))
		leave := r.IntN(3000)
		for range leave {
			key := r.Uint64N(2000)
			if g.Leave(key, r.IntN(8)); r.IntN(4) == 0 {
				g.Return(r.Uint64N(2000))
			}
		}
		b := marshaled(t, g)
		if most := 4 + 6*min(leave, len(g.buckets)*len(bucket{})); len(b) > most {
			t.Fatalf("%d bytes for %d that left; want %d at most", len(b), leave, most)
		}
		again := &Ghosts{buckets: make([]bucket, len(g.buckets))}
		again.Leave(5000, 1) // before, so it is forgotten
		if err := again.UnmarshalBinary(b); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(again.buckets, g.buckets) {
			t.Fatalf("%v is restored as %v", g.buckets, again.buckets)
		}
	}
}

// A table of another size cannot be used, and damage changes nothing.
func TestGhostsOfAnotherSizeAndDamaged(t *testing.T) {
	g, other := NewGhosts(64), NewGhosts(128)
	for key := range uint64(30) {
		g.Leave(key, 2)
		other.Leave(key, 3)
	}
	before := marshaled(t, g)
	for name, b := range map[string][]byte{
		"empty": {}, "no number of buckets": {1, 0, 0}, "no buckets": {0, 0, 0, 0}, "three buckets": {3, 0, 0, 0}, "too many buckets": {0, 0, 0, 1},
		"a bucket beyond the last": {1, 0, 0, 0, 1, 1, 1, 0, 0, 0}, "two of one": {1, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 0, 0, 0},
		"no count": {1, 0, 0, 0, 0}, "count of 0": {1, 0, 0, 0, 0, 0}, "count of 9": append([]byte{1, 0, 0, 0, 0, 9}, bytes.Repeat([]byte{1}, 36)...),
		"a slot too few": {1, 0, 0, 0, 0, 2, 1, 0, 0, 0}, "no uses": {1, 0, 0, 0, 0, 1, 8, 0, 0, 0}, "six uses": {1, 0, 0, 0, 0, 1, 6, 0, 0, 0},
		"a long varint": {1, 0, 0, 0, 0x80, 0, 1, 1, 0, 0, 0},
	} {
		if err := g.UnmarshalBinary(b); !errors.Is(err, errGhosts) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if !bytes.Equal(marshaled(t, g), before) {
		t.Error("damage has changed what is remembered")
	}
	if err := g.UnmarshalBinary(marshaled(t, other)); err != nil || g.Return(1) != 0 {
		t.Errorf("of another size: %v", err)
	}
}

func FuzzGhosts(f *testing.F) {
	g := NewGhosts(32)
	for key := range uint64(20) {
		g.Leave(key, int(key))
	}
	f.Add(marshaled(f, g))
	f.Add([]byte{1, 0, 0, 0, 0, 1, 1, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < 4 || b[3] != 0 || b[2] != 0 {
			return // large tables only cost time
		}
		g := NewGhosts(8 * (int(b[0]) | int(b[1])<<8))
		if err := g.UnmarshalBinary(b); err != nil {
			if !errors.Is(err, errGhosts) {
				t.Fatal(err)
			}
			return
		}
		if again := marshaled(t, g); !bytes.Equal(again, b) {
			t.Fatalf("%x is written as %x", b, again)
		}
	})
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
