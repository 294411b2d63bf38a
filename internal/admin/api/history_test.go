package api

import (
	"reflect"
	"slices"
	"testing"
)

// historyOf returns steps from first to end, whose values are their numbers; from unmeasured on, they have none.
func historyOf(first, end, unmeasured int64) History {
	h := History{Window: Window10m, StepSeconds: 1, First: first, Measured: unmeasured - 1, Series: []Series{{Name: "a"}}}
	for n := first; n <= end; n++ {
		h.Times = append(h.Times, 1e9+n)
		value := float64(n)
		if n >= unmeasured {
			h.Series[0].Values = append(h.Series[0].Values, nil)
		} else {
			h.Series[0].Values = append(h.Series[0].Values, &value)
		}
	}
	return h
}

// clock moves the clock by which a history has its times.
func (h History) clock(by int64) History {
	h.Times = slices.Clone(h.Times)
	for i := range h.Times {
		h.Times[i] += by
	}
	return h
}

// What is asked for in parts is what is asked for at once.
func TestJoin(t *testing.T) {
	for name, c := range map[string]struct{ had, later, want History }{
		"the first answer":             {History{}, historyOf(5, 14, 14), historyOf(5, 14, 14)},
		"one more":                     {historyOf(5, 14, 15), historyOf(15, 15, 16), historyOf(6, 15, 16)},
		"what was not yet measured":    {historyOf(5, 14, 13), historyOf(13, 16, 17), historyOf(7, 16, 17)},
		"nothing new":                  {historyOf(5, 14, 15), historyOf(15, 14, 15), historyOf(5, 14, 15)},
		"all again":                    {historyOf(5, 14, 15), historyOf(7, 16, 17), historyOf(7, 16, 17)},
		"after a long while":           {historyOf(5, 14, 15), historyOf(40, 49, 50), historyOf(40, 49, 50)},
		"the clock was set back":       {historyOf(5, 14, 15), historyOf(15, 16, 17).clock(-3600), historyOf(7, 16, 17).clock(-3600)},
		"and nothing is new":           {historyOf(5, 14, 15), historyOf(15, 14, 15).clock(-3600), historyOf(5, 14, 15)},
		"soon after a boot":            {historyOf(-5, 4, 5), historyOf(5, 6, 7), historyOf(-3, 6, 7)},
		"a host that has booted again": {historyOf(500, 509, 510), historyOf(-8, 1, 2), historyOf(-8, 1, 2)},
	} {
		if got := c.had.Join(c.later); !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
