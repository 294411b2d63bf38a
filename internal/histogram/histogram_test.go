package histogram

import (
	"slices"
	"sync"
	"testing"
	"time"
)

func TestHistogram(t *testing.T) {
	h := NewWithExamples([]time.Duration{time.Millisecond, time.Second})
	for _, d := range []time.Duration{-1, 0, time.Millisecond, time.Millisecond + 1, time.Second, time.Hour} {
		h.Observe(d)
	}
	h.Add(1, 10, 5*time.Second)
	h.Show(Example{Took: time.Minute, File: 7})
	h.Show(Example{Took: time.Hour, File: 8})
	c := h.Count()
	if !slices.Equal(c.Within, []int64{3, 12, 1}) || c.Total() != 16 || c.Sum != time.Hour+6*time.Second+2*time.Millisecond+1 {
		t.Errorf("%+v", c)
	}
	if c.Examples[0] != nil || c.Examples[1] != nil || c.Examples[2] == nil || c.Examples[2].File != 8 {
		t.Errorf("examples: %+v", c.Examples)
	}
	if plain := New(nil).Count(); plain.Examples != nil || len(plain.Within) != 1 {
		t.Errorf("%+v", plain)
	}
}

func TestConcurrently(t *testing.T) {
	h := New([]time.Duration{1, 2})
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 1000 {
				h.Observe(time.Duration(i))
				h.Count()
			}
		})
	}
	group.Wait()
	if c := h.Count(); c.Total() != 8000 || c.Sum != 28000 {
		t.Errorf("%+v", c)
	}
}
