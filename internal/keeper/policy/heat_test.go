package policy_test

import (
	"math"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/kv3fs/kv3fs/internal/keeper/policy"
)

func TestHeatKeepsWhatItIsGiven(t *testing.T) {
	const y2100 = 4102444800000
	for _, c := range []struct {
		nowMs       int64
		order, uses int
		wantMs      int64
		wantOrder   int
		wantUses    int
	}{
		{0, 0, 0, 0, 0, 0},
		{1, 2, 3, 1, 2, 3},
		{y2100, 1<<19 - 1, 5, y2100, 1<<19 - 1, 5},
		{y2100, 1 << 19, 6, y2100, 1<<19 - 1, policy.MaxUses},
		{-1, -1, -1, 0, 0, 0},
		{math.MaxInt64, math.MaxInt64, math.MaxInt64, 1<<42 - 1, 1<<19 - 1, policy.MaxUses},
		{math.MinInt64, math.MinInt64, math.MinInt64, 0, 0, 0},
	} {
		h := policy.MakeHeat(c.nowMs, c.order, c.uses)
		if h.LastUseMs() != c.wantMs || h.Order() != c.wantOrder || h.Uses() != c.wantUses {
			t.Errorf("MakeHeat(%d, %d, %d): %d %d %d", c.nowMs, c.order, c.uses, h.LastUseMs(), h.Order(), h.Uses())
		}
	}
	if size := unsafe.Sizeof(policy.Heat(0)); size != 8 {
		t.Errorf("a Heat takes %d bytes", size)
	}
}

func TestTouchCountsAndRenewDoesNot(t *testing.T) {
	var h policy.Heat
	for i, want := range []int{1, 2, 3, 4, 5, 5, 5} {
		if h = h.Touch(int64(100+i), i); h.Uses() != want || h.LastUseMs() != int64(100+i) || h.Order() != i {
			t.Errorf("use %d: %d uses at %d, order %d", i+1, h.Uses(), h.LastUseMs(), h.Order())
		}
	}
	h = policy.MakeHeat(1, 0, 2).Renew(9, 4)
	if h != policy.MakeHeat(9, 4, 2) {
		t.Errorf("renewed: %d uses at %d, order %d", h.Uses(), h.LastUseMs(), h.Order())
	}
	if h = policy.Heat(0).Renew(9, 4); h.Uses() != 1 {
		t.Errorf("the first use, by Renew: %d uses", h.Uses())
	}
}

// Each list is in the order in which entries leave.
func TestScoreOrders(t *testing.T) {
	at := policy.MakeHeat
	for name, c := range map[string]struct {
		bonus  time.Duration
		leaves []policy.Heat
	}{
		"by last use without bonus": {0, []policy.Heat{0, at(1, 0, 5), at(2, 0, 1), at(3, 0, 3)}},
		"a use is worth the bonus":  {10 * time.Millisecond, []policy.Heat{at(0, 0, 1), at(9, 0, 1), at(0, 0, 2), at(11, 0, 1), at(0, 0, 5), at(41, 0, 1)}},
		"leaves before the root":    {time.Second, []policy.Heat{at(7, 1<<18, 2), at(7, 2, 2), at(7, 1, 2), at(7, 0, 2), at(8, 9, 2)}},
		"a negative bonus is none":  {-time.Hour, []policy.Heat{at(1, 0, 5), at(2, 0, 1)}},
		"an absurd bonus":           {math.MaxInt64, []policy.Heat{at(9, 0, 1), at(1, 0, 2), at(2, 0, 2), at(1, 0, 3)}},
	} {
		if !slices.IsSortedFunc(c.leaves, func(a, b policy.Heat) int {
			if a.Score(c.bonus) < b.Score(c.bonus) {
				return -1
			}
			return 1
		}) {
			t.Errorf("%s: another order", name)
		}
	}
}
