package keeper

import (
	"slices"
	"testing"
)

func TestAges(t *testing.T) {
	var a ages
	for _, seconds := range []int64{-5, 0, 60, 61, 3600, 1 << 40} {
		a.add(seconds)
	}
	got := a.read()
	if !slices.Equal(got.Files, []int64{3, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1}) || got.SumSeconds != 60+61+3600+(1<<40) || len(got.BoundsSeconds) != len(got.Files)-1 {
		t.Errorf("%+v", got)
	}
}
