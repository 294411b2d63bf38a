package policy_test

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kv3fs/kv3fs/internal/keeper/policy"
	"github.com/kv3fs/kv3fs/internal/test/seed"
)

func TestSelect(t *testing.T) {
	all := []policy.Candidate[string]{
		{"root", policy.MakeHeat(100, 0, 3), 4},
		{"leaf", policy.MakeHeat(100, 1, 3), 4},
		{"old", policy.MakeHeat(10, 0, 1), 1},
		{"big", policy.MakeHeat(20, 0, 1), 100},
		{"never used", 0, 2},
		{"twin a", policy.MakeHeat(30, 0, 1), 1},
		{"twin b", policy.MakeHeat(30, 0, 1), 1},
	}
	for _, c := range []struct {
		need  int64
		bonus time.Duration
		want  string
	}{
		{-5, 0, "[]"},
		{0, 0, "[]"},
		{1, 0, "[never used]"},
		{2, 0, "[never used]"},
		{3, 0, "[never used old]"},
		{4, 0, "[never used old big]"},
		{103, 0, "[never used old big]"},
		{104, 0, "[never used old big twin a]"},
		{106, 0, "[never used old big twin a twin b leaf]"},
		{1 << 40, 0, "[never used old big twin a twin b leaf root]"},
		{106, time.Hour, "[never used old big twin a twin b leaf]"},
	} {
		got := []string{}
		for _, v := range policy.Select(slices.Values(all), c.need, c.bonus) {
			got = append(got, v.ID)
		}
		if fmt.Sprint(got) != c.want {
			t.Errorf("%d bytes, bonus %v: %v; want %s", c.need, c.bonus, got, c.want)
		}
	}
}

// Select finds what sorting everything would find.
func TestSelectEqualsSorting(t *testing.T) {
	r := rand.New(rand.NewPCG(seed.New(t), 1))
	for range 2000 {
		all := make([]policy.Candidate[int], r.IntN(40))
		var total int64
		for i := range all {
			all[i] = policy.Candidate[int]{i, policy.MakeHeat(r.Int64N(20), r.IntN(3), 1+r.IntN(5)), r.Int64N(5)}
			total += all[i].SizeBytes
		}
		bonus := time.Duration(r.IntN(8)) * time.Millisecond
		need := r.Int64N(total + 10)
		sorted := slices.Clone(all)
		slices.SortStableFunc(sorted, func(a, b policy.Candidate[int]) int { return cmp.Compare(a.Heat.Score(bonus), b.Heat.Score(bonus)) })
		n, bytes := 0, int64(0)
		for ; n < len(sorted) && bytes < need; n++ {
			bytes += sorted[n].SizeBytes
		}
		if got := policy.Select(slices.Values(all), need, bonus); !slices.Equal(got, sorted[:n]) {
			t.Fatalf("%v\n%d bytes, bonus %v: %v; want %v", all, need, bonus, got, sorted[:n])
		}
	}
}
