package curve

import (
	"runtime"
	"testing"
)

// perEntry is what the keeper takes of memory for each of a million files, as docs/keeper.md has it.
const perEntry = 64

// Of a million entries the curve takes less than a hundredth of what the keeper takes for them, however many are used.
func TestMemoryIsAHundredthOfTheKeepers(t *testing.T) {
	heap := func() uint64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc
	}
	before := heap()
	e := New(Options{})
	most := uint64(0)
	for key := range uint64(1_000_000) {
		e.Use(key, 1<<20, int64(key), false)
		if key%100_000 == 0 {
			most = max(most, heap()-before)
		}
	}
	most = max(most, heap()-before)
	runtime.KeepAlive(e)
	t.Logf("%d KiB", most>>10)
	if limit := uint64(1_000_000 * perEntry / 100); most > limit {
		t.Errorf("the curve of a million entries takes %d bytes; a hundredth of the keeper's are %d", most, limit)
	}
}
