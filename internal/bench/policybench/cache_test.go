package policybench

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/kv3fs/kv3fs/internal/keeper/policy"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

// held returns the blocks that a cache holds, as letters.
func held(c cache, distinct int) string {
	var b strings.Builder
	for i := range distinct {
		if c.has(int32(i)) {
			b.WriteByte(byte('a' + i))
		}
	}
	return b.String()
}

// What each policy holds after each use, worked out by hand.
func TestPoliciesByHand(t *testing.T) {
	for name, c := range map[string]struct {
		cache cache
		uses  string
		want  []string
	}{
		"LRU":  {newLRU(26, 3), "abcadbae", []string{"a", "ab", "abc", "abc", "acd", "abd", "abd", "abe"}},
		"FIFO": {newFIFO(26, 3), "abcadaeb", []string{"a", "ab", "abc", "abc", "bcd", "acd", "ade", "abe"}},
		// c has one use, and so do d and e in turn; b has two; a three.
		"LFU": {newLFU(26, 3), "aaabbcdef", []string{"a", "a", "a", "ab", "ab", "abc", "abd", "abe", "abf"}},
		// Of equal numbers of uses, the one used least recently leaves.
		"LFU ties": {newLFU(26, 2), "abbacd", []string{"a", "ab", "ab", "ab", "ac", "ad"}},
		// One of ten places is for new blocks. a has two uses when it leaves them, and moves to
		// the main queue instead. b and c have none and leave.
		"S3-FIFO keeps what was used twice": {newS3FIFO(26, 10), "aaabcdefghijk", []string{"a", "a", "a", "ab", "abc", "abcd", "abcde", "abcdef", "abcdefg", "abcdefgh", "abcdefghi", "abcdefghij", "acdefghijk"}},
		// a leaves, is remembered, and returns to the main queue: it survives a scan.
		"S3-FIFO remembers": {newS3FIFO(26, 3), "abcdaefg", []string{"a", "ab", "abc", "bcd", "acd", "ade", "aef", "afg"}},
		// With the default bonus of zero, it is LRU.
		"kv3fs": {newTuned(26, 3), "abcadbae", []string{"a", "ab", "abc", "abc", "acd", "abd", "abd", "abe"}},
	} {
		for i, b := range c.uses {
			c.cache.use(b-'a', int64(i), 0)
			if got := held(c.cache, 26); got != c.want[i] {
				t.Errorf("%s after %s: %s; want %s", name, c.uses[:i+1], got, c.want[i])
			}
		}
	}
}

// No policy holds more than its capacity, and all hold what was just used.
func TestPoliciesKeepTheirCapacity(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 3))
	for range 30 {
		capacity := 1 + r.IntN(12)
		for _, c := range contenders() {
			sim := c.make(26, capacity)
			for i := range 400 {
				b := int32(r.IntN(26))
				sim.use(b, int64(i/3), i%3)
				if all := held(sim, 26); len(all) > capacity || !sim.has(b) {
					t.Fatalf("%s with %d blocks holds %s after %c", c.name, capacity, all, 'a'+b)
				}
			}
		}
	}
}

// The queues of the simulated cache give the victim that policy.Select would choose.
func TestTunedEvictsWhatSelectWould(t *testing.T) {
	trace := scans(2)
	c := newTuned(trace.DistinctBlocks, 300)
	now, bonuses := int64(0), map[bool]int{}
	for i, r := range trace.requests {
		now = max(now+1, r.atMs)
		blocks := trace.of(r)
		for depth := len(blocks) - 1; depth >= 0; depth-- {
			c.use(blocks[depth], now, depth)
		}
		if i%7 != 0 || c.held < c.capacity {
			continue
		}
		var all []policy.Candidate[int32]
		for b, h := range c.heat {
			if h != 0 {
				all = append(all, policy.Candidate[int32]{ID: int32(b), Heat: h, SizeBytes: 1})
			}
		}
		want := policy.Select(slices.Values(all), 1, c.tuner.Bonus())
		if got := c.victim(); got != want[0].ID {
			t.Fatalf("request %d: victim %d, %x; Select chooses %v", i, got, c.heat[got], want)
		}
		bonuses[c.tuner.Bonus() > 0]++
	}
	if bonuses[true] == 0 || bonuses[false] == 0 {
		t.Errorf("compared without and with a bonus: %v", bonuses)
	}
}

// A hit behind a gap is none.
func TestHitsEndAtTheFirstGap(t *testing.T) {
	l := newLoad("gap")
	first, second, third := l.new(1), l.new(1), l.new(1)
	l.ask(0, first, third)
	l.ask(0, first, second, third)
	hits, err := simulate(t.Context(), l.Trace, newLRU(3, 3))
	if err != nil || hits != 1 {
		t.Errorf("%d hits, %v; want 1: what follows a gap cannot be used", hits, err)
	}
}

func TestLeafLeavesBeforeItsRoot(t *testing.T) {
	for _, c := range contenders() {
		sim := c.make(26, 4)
		for depth := 3; depth >= 0; depth-- {
			sim.use(int32(depth), 0, depth)
		}
		sim.use(10, 1, 0)
		if got := held(sim, 26); c.name != "s3fifo" && got != fmt.Sprintf("abc%c", 'a'+10) {
			t.Errorf("%s holds %s", c.name, got)
		}
	}
}
