//go:build invariants

package assembly

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

func TestWrongStatesAreSeen(t *testing.T) {
	begin := func() (*Table[int], *Block[int]) {
		table := New[int](2, sum)
		b, _, err := table.Enter(some, kv.Shard{Key: key}, func() (int, error) { return 0, nil }, func() {})
		if err != nil {
			t.Fatal(err)
		}
		return table, b
	}
	table, b := begin()
	sees(t, "a shard that nobody writes was written", func() { table.Written(b, 1) })
	table, b = begin()
	table.Written(b, 0)
	sees(t, "a shard was written twice", func() { table.Written(b, 0) })
	table, b = begin()
	sees(t, "a block was finished with a shard under way", func() { table.Finish(b) })
	table, b = begin()
	b.written++
	sees(t, "counts are wrong", func() { table.Written(b, 0) })
}
