//go:build invariants

package cache

import (
	"testing"

	"github.com/kv3fs/kv3fs/kvstore/internal/empty"
	"github.com/kv3fs/kv3fs/kvstore/internal/kv"
)

// sees checks that fn violates an invariant.
func sees(t *testing.T, what string, fn func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s: not noticed", what)
		}
	}()
	fn()
}

func TestWrongPinsAreSeen(t *testing.T) {
	s, err := New(empty.New(kv.Layout{BlockBytes: 8, ShardBytes: 4}), Options{CapacityBytes: 8 * 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	sees(t, "a slot without pins loses one", func() { s.unpin([]int32{1}) })
	s.checkPins()
	s.pinned++
	sees(t, "the count of pinned slots is wrong", s.checkPins)
	s.pinned--
	s.table.Pin(2)
	sees(t, "the table has a pin that nobody holds", s.checkPins)
	s.table.Unpin(2)
	s.pins[2]++
	s.pinned++
	sees(t, "somebody holds a pin that the table has not", s.checkPins)
	s.pins[2]--
	s.pinned--
}
