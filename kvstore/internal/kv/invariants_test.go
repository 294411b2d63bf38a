//go:build invariants

package kv

import "testing"

// The checks of a task see a count that is wrong.
func TestTaskWithAWrongCountPanics(t *testing.T) {
	task := NewTask(t.Context(), batch(0, 1))
	task.left[1]++
	defer func() {
		if recover() == nil {
			t.Error("a shard too many is left, and nothing panicked")
		}
	}()
	task.Settle(0, nil)
}
