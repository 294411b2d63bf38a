package policy

import "testing"

func TestHistoryCountsAndForgets(t *testing.T) {
	h := newHistory(1 << 12)
	for round := 1; round <= 7; round++ {
		for key := range uint64(500) {
			if got, want := h.add(mix(key)), min(round, MaxUses); got != want {
				t.Fatalf("key %d, round %d: %d uses; want %d", key, round, got, want)
			}
		}
	}
	if got := h.uses(mix(1000)); got != 0 {
		t.Errorf("a key that was never used has %d uses", got)
	}
	if got := h.uses(mix(3)); got != MaxUses {
		t.Errorf("a key that was used 7 times has %d uses", got)
	}
	for key := range uint64(100_000) { // 24 times what it can hold
		h.add(mix(1<<32 + key))
	}
	remembered := 0
	for key := range uint64(500) {
		if h.uses(mix(key)) > 0 {
			remembered++
		}
	}
	if remembered != 0 {
		t.Errorf("%d keys are remembered after many others", remembered)
	}
	recent := 0
	for key := range uint64(1000) {
		if h.uses(mix(1<<32+99_000+key)) > 0 {
			recent++
		}
	}
	if recent < 990 {
		t.Errorf("only %d of the last 1000 keys are remembered, of 4096 that fit", recent)
	}
}

// Keys that differ in the tag only share a bucket; the one used last stays longest.
func TestHistoryBucketIsLRU(t *testing.T) {
	h := newHistory(1)
	key := func(i int) uint64 { return uint64(i) << 40 }
	for i := range 8 {
		h.add(key(i))
	}
	h.add(key(0))
	h.add(key(8))
	for i, want := range []int{2, 0, 1, 1, 1, 1, 1, 1, 1} {
		if got := h.uses(key(i)); got != want {
			t.Errorf("key %d: %d uses; want %d", i, got, want)
		}
	}
}
