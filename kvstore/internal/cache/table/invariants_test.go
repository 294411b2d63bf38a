//go:build invariants

package table

import (
	"testing"

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

func TestBrokenInvariantsAreSeen(t *testing.T) {
	table, err := Private(Config{Layout: kv.Layout{BlockBytes: 8, ShardBytes: 4}, CapacityBytes: 8 * pageBytes})
	if err != nil {
		t.Fatal(err)
	}
	defer table.Unmap()
	table.Claim(0, kv.Key{1}, Loading, 1, 1)
	sees(t, "a slot is claimed twice", func() { table.Claim(0, kv.Key{2}, Loading, 1, 1) })
	sees(t, "what was loaded is dirty", func() { table.Become(0, Dirty) })
	table.Pin(1)
	sees(t, "a pinned slot is claimed", func() { table.Claim(1, kv.Key{2}, Loading, 1, 1) })
}
