package inventory_test

import (
	"fmt"
	"testing"

	"github.com/kv3fs/kv3fs/internal/keeper/inventory"
)

// A breakdown has the largest directories with their parents, says how many it leaves out, and where each group is.
func TestBreakdown(t *testing.T) {
	v, key := grouped(t)
	root := v.KeyOf(v.Root())
	const dirs = 50
	for i := 1; i <= dirs; i++ {
		v.Created(key(i), root, fmt.Sprintf("d%02d", i), true)
		v.Created(key(100+i), key(i), "below", true)
		v.Created(key(200+i), key(100+i), "model", false)
		v.Settle(key(200+i), 0, int64(8*i))
	}
	branches, groups, ok := v.Breakdown(".", 2, 4)
	if !ok || len(branches) != 5 || branches[0].Path != "." || branches[0].Parent != -1 || branches[0].More != dirs-2 {
		t.Fatalf("%+v, %v", branches, ok)
	}
	for i, want := range []string{".", "d50", "d49", "d50/below", "d49/below"} {
		b := branches[i]
		if b.Path != want || i > 0 && branches[b.Parent].Path != map[bool]string{true: ".", false: want[:3]}[i < 3] || i > 0 && b.More != 0 || b.Limit != inventory.Unlimited {
			t.Errorf("%d: %+v; want %s", i, b, want)
		}
	}
	if len(groups) != 1 || groups[0].Model != "model" || groups[0].Files != dirs || len(groups[0].Branches) != 20 || groups[0].Branches[0].Path != "d50" {
		t.Errorf("%+v", groups)
	}
	branches, groups, ok = v.Breakdown("d07", 0, 4)
	if !ok || len(branches) != 1 || branches[0].Path != "d07" || branches[0].Bytes != 512*8*7 || branches[0].More != 0 || len(groups) != 1 || groups[0].Branches[0].Path != "d07/below" {
		t.Errorf("%+v, %+v, %v", branches, groups, ok)
	}
	if _, _, ok := v.Breakdown("below", 1, 1); ok {
		t.Error("a directory that is elsewhere")
	}
}
