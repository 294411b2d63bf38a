package history

import (
	"context"
	"math"
	"sync/atomic"
	"testing"
	"time"
)

// sample is a counter and a gauge.
type sample struct{ counted, level float64 }

func series() []Series[sample] {
	return []Series[sample]{
		{"rate", "1/s", func(before, now sample, seconds float64) float64 { return (now.counted - before.counted) / seconds }},
		{"level", "", func(_, now sample, _ float64) float64 { return now.level }},
	}
}

func at(now *time.Duration) *History[sample] {
	return New(Options[sample]{Series: series(), Clock: func() time.Duration { return *now }})
}

// value returns the value of a series at a distance from the newest one.
func value(w Window, series, back int) float64 { return w.Values[series][len(w.Times)-1-back] }

// Each step has what was counted in it; a step in which nobody measured is a gap, and so is a time for which the machine
// was suspended, whose count is in no step.
func TestGapsAreGaps(t *testing.T) {
	now := 1000 * time.Second
	h := at(&now)
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	counted := 0.0
	take := func(d time.Duration, more float64) {
		now += d
		counted += more
		h.note(sample{counted, counted}, now)
	}
	take(0, 7) // what was counted before is of no step
	take(time.Second, 10)
	take(1100*time.Millisecond, 22) // late
	take(900*time.Millisecond, 9)   // and in time again
	w := h.Window(Fine, 0, wall)
	if n := len(w.Times); n != 600 || len(w.Values[0]) != n || !w.Times[n-1].Equal(wall) || w.Times[1].Sub(w.Times[0]) != time.Second {
		t.Fatalf("%d times up to %v", len(w.Times), w.Times[n-1])
	}
	near := func(v, want float64) bool { return math.Abs(v-want) < 1e-9 }
	if !near(value(w, 0, 0), 10) || !near(value(w, 0, 1), 20) || !near(value(w, 0, 2), 10) || !math.IsNaN(value(w, 0, 3)) || !near(value(w, 1, 0), 48) {
		t.Errorf("%v", w.Values[0][590:])
	}
	take(time.Hour, 1e9) // suspended
	take(time.Second, 5)
	w = h.Window(Fine, 0, wall)
	if !near(value(w, 0, 0), 5) || !math.IsNaN(value(w, 0, 1)) || !math.IsNaN(value(w, 0, 2)) || !math.IsNaN(value(w, 0, 599)) {
		t.Errorf("after a suspension: %v", w.Values[0][590:])
	}
	now += 3 * time.Second // nobody measures
	w = h.Window(Fine, 0, wall)
	if !math.IsNaN(value(w, 0, 0)) || !math.IsNaN(value(w, 0, 2)) || !near(value(w, 0, 3), 5) || !w.Times[599].Equal(wall) {
		t.Errorf("without a measurement: %v", w.Values[0][590:])
	}
}

// A day has a value a minute, each of all that was counted in it, and the oldest goes.
func TestDay(t *testing.T) {
	now := time.Duration(0)
	h := at(&now)
	for range 25 * 3600 {
		h.note(sample{counted: 3 * now.Seconds(), level: now.Hours()}, now)
		now += time.Second
	}
	now -= time.Second
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	w := h.Window(Coarse, 0, wall)
	if len(w.Times) != 1440 || w.Times[1].Sub(w.Times[0]) != time.Minute {
		t.Fatal(len(w.Times))
	}
	for i, v := range w.Values[0] {
		if math.Abs(v-3) > 1e-9 {
			t.Fatalf("minute %d: %v", i, v)
		}
		if end := now - wall.Sub(w.Times[i]); math.Abs(w.Values[1][i]-end.Hours()) > 0.001 {
			t.Fatalf("minute %d, which ended at %v, has the level of %v hours", i, end, w.Values[1][i])
		}
	}
	if first, last := w.Values[1][0], value(w, 1, 0); math.Abs(last-first-24) > 0.1 || last < 24.9 {
		t.Errorf("from %v to %v hours", first, last)
	}
}

// Run measures, and ends with its context.
func TestRun(t *testing.T) {
	var taken atomic.Int64
	began := time.Now()
	second := make(chan struct{})
	h := New(Options[sample]{
		Series: series(), Clock: func() time.Duration { return time.Since(began) },
		Take: func(context.Context) sample {
			if taken.Add(1) == 2 {
				close(second)
			}
			return sample{}
		},
	})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.Run(ctx)
	}()
	<-second
	cancel()
	<-ended
}

// Who has the steps up to the last one that was measured is told what came after it, and all where that is too long ago or of another boot.
func TestWindowAfter(t *testing.T) {
	now := 1000 * time.Second
	h := at(&now)
	wall := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for range 10 {
		h.note(sample{now.Seconds(), now.Seconds()}, now)
		now += time.Second
	}
	all := h.Window(Fine, 0, wall) // its last step has ended and is not measured yet
	if n := len(all.Times); n != 600 || all.Measured != 1009 || all.First != 411 || !math.IsNaN(value(all, 1, 0)) || value(all, 1, 1) != 1009 {
		t.Fatalf("%d steps from %d, %d measured", n, all.First, all.Measured)
	}
	h.note(sample{now.Seconds(), now.Seconds()}, now)
	if w := h.Window(Fine, all.Measured, wall); w.First != 1010 || len(w.Times) != 1 || value(w, 1, 0) != 1010 || !w.Times[0].Equal(wall) || w.Measured != 1010 {
		t.Errorf("%+v", w)
	}
	if w := h.Window(Fine, 1010, wall); w.First != 1011 || len(w.Times) != 0 || len(w.Values[1]) != 0 {
		t.Errorf("nothing is new: %+v", w)
	}
	for _, after := range []int64{0, 410, 1011, math.MaxInt64} {
		if w := h.Window(Fine, after, wall); len(w.Times) != 600 || w.First != 411 {
			t.Errorf("after %d: %d steps from %d", after, len(w.Times), w.First)
		}
	}
}

// A host that has just booted has as many steps as another, to who has none yet.
func TestWindowAfterBoot(t *testing.T) {
	now := time.Duration(0)
	h := at(&now)
	for step, c := range map[time.Duration]struct{ up, steps int64 }{Fine: {64, 600}, Coarse: {1200, 1440}} {
		now = time.Duration(c.up) * step
		if w := h.Window(step, 0, time.Unix(1e9, 0)); int64(len(w.Times)) != c.steps || w.First != c.up-c.steps+1 {
			t.Errorf("up for %v: %d steps from %d", now, len(w.Times), w.First)
		}
		if w := h.Window(step, 1, time.Unix(1e9, 0)); int64(len(w.Times)) != c.up-1 || w.First != 2 {
			t.Errorf("up for %v, after 1: %d steps from %d", now, len(w.Times), w.First)
		}
	}
}
