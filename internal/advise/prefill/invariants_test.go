//go:build invariants

package prefill

import "testing"

func TestCheckGridPanics(t *testing.T) {
	for name, p := range map[string]*Profile{
		"descending":   {concurrencies: []int{2, 1}, lengths: []int{1}, mfu: [][]float64{{0.5}, {0.5}}},
		"missing row":  {concurrencies: []int{1, 2}, lengths: []int{1}, mfu: [][]float64{{0.5}}},
		"missing cell": {concurrencies: []int{1}, lengths: []int{1, 2}, mfu: [][]float64{{0.5}}},
	} {
		panicked := func() (is bool) {
			defer func() { is = recover() != nil }()
			p.checkGrid()
			return false
		}()
		if !panicked {
			t.Errorf("%s: no panic", name)
		}
	}
}
