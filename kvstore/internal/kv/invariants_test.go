//go:build invariants

package kv

import "testing"

// The checks of a task notice a wrong count.
func TestTaskWithAWrongCountPanics(t *testing.T) {
	task := NewTask(t.Context(), batch(0, 1))
	task.left[1]++
	defer func() {
		if recover() == nil {
			t.Error("the count of shards left is one too high, and nothing panicked")
		}
	}()
	task.Settle(0, nil)
}
