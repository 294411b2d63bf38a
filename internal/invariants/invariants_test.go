package invariants

import "testing"

func TestCheckPanicsOnlyInTestBuilds(t *testing.T) {
	panicked := func(holds bool) (is bool) {
		defer func() { is = recover() != nil }()
		Check(holds, "page %d has two owners", 7)
		return false
	}
	if panicked(true) {
		t.Error("an invariant that holds panicked")
	}
	if got := panicked(false); got != Enabled {
		t.Errorf("a violated invariant panicked: %v; this build asserts: %v", got, Enabled)
	}
}
