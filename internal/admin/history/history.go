// Package history keeps what a daemon measured over the last day: a value each second for ten minutes and one each minute for a
// day, in memory. It takes 8 bytes for each value: with 20 series, 20·(600+1440)·8 bytes or 320 KiB, from the start on.
package history

import (
	"context"
	"math"
	"sync"
	"time"
)

// Series is one number over time.
type Series[S any] struct {
	Name, Unit string
	// Value tells it of a step, from what was counted at its beginning and at its end. NaN: there is none.
	Value func(before, now S, seconds float64) float64
}

// Options are the options of New.
type Options[S any] struct {
	Series []Series[S]
	// Take returns what is counted so far, and what there is now. It is called each second, and should return at once.
	Take func(ctx context.Context) S
	// Clock is one that nobody sets, and that goes on while the machine is suspended.
	Clock func() time.Duration
}

// The windows.
const (
	Fine, Coarse         = time.Second, time.Minute
	fineSteps, longSteps = 600, 1440
)

// History has the values of each step up to now. Its methods may be called concurrently.
type History[S any] struct {
	o Options[S]

	mu           sync.Mutex
	fine, coarse *track[S]
}

// New returns a history that is empty until Run.
func New[S any](o Options[S]) *History[S] {
	return &History[S]{o: o, fine: newTrack[S](Fine, fineSteps, len(o.Series)), coarse: newTrack[S](Coarse, longSteps, len(o.Series))}
}

// Run measures until ctx ends.
func (h *History[S]) Run(ctx context.Context) {
	for {
		h.note(h.o.Take(ctx), h.o.Clock())
		// At the ends of steps, so that one that is late is still of its step.
		timer := time.NewTimer(Fine - h.o.Clock()%Fine)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

func (h *History[S]) note(s S, at time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, t := range []*track[S]{h.fine, h.coarse} {
		t.note(h.o.Series, s, at)
	}
}

// Window is what there is of one resolution: columns of equal length.
type Window struct {
	Step time.Duration
	// First is the number of the first of the steps, which follow one another. Measured is that of the last one that was measured.
	First, Measured int64
	// Times are the ends of the steps, as the wall clock has them now, ascending.
	Times []time.Time
	// Values has a column for each series, in order. NaN: nobody measured, or there was nothing to measure.
	Values [][]float64
}

// Window returns the values of a resolution, Fine or Coarse, of the steps after one with a number; where that is none that there is, or not above 0, of
// all: a host that has just booted has steps before its boot, too. Its last step is the last one that has ended.
func (h *History[S]) Window(step time.Duration, after int64, wall time.Time) Window {
	h.mu.Lock()
	defer h.mu.Unlock()
	t := h.fine
	if step == Coarse {
		t = h.coarse
	}
	return t.window(h.o.Clock(), after, wall)
}

// track is a ring of values of one resolution. A step is known by its number, which is the time of its end in steps.
type track[S any] struct {
	step   time.Duration
	steps  int64
	values [][]float64 // by series, then by the step's number modulo steps

	began  bool
	last   int64 // number of the step that was noted last
	sample S     // as of then
	at     time.Duration
}

func newTrack[S any](step time.Duration, steps int64, series int) *track[S] {
	t := &track[S]{step: step, steps: steps, values: make([][]float64, series)}
	for i := range t.values {
		t.values[i] = make([]float64, steps)
		for j := range t.values[i] {
			t.values[i][j] = math.NaN()
		}
	}
	return t
}

// note takes a sample, which is of the step that has ended last, or ends within half of a fine one. Steps without a sample stay empty; what was counted in
// them is in the average of the one after, over all of that time, unless that is long.
func (t *track[S]) note(series []Series[S], s S, at time.Duration) {
	number := int64((at + Fine/2) / t.step)
	if !t.began {
		t.began, t.last, t.sample, t.at = true, number, s, at
		return
	}
	if number <= t.last {
		return // it has not ended
	}
	for skipped := max(t.last+1, number-t.steps+1); skipped < number; skipped++ {
		for i := range t.values {
			t.values[i][skipped%t.steps] = math.NaN()
		}
	}
	whole := at-t.at < 2*t.step
	for i := range t.values {
		v := math.NaN()
		if whole {
			v = series[i].Value(t.sample, s, (at - t.at).Seconds())
		}
		t.values[i][number%t.steps] = v
	}
	t.last, t.sample, t.at = number, s, at
}

func (t *track[S]) window(now time.Duration, after int64, wall time.Time) Window {
	end := int64(now / t.step)
	if t.last > end { // it was noted a little before its end
		end = t.last
	}
	first := end - t.steps + 1
	if after > 0 && after >= first && after <= end {
		first = after + 1
	}
	w := Window{Step: t.step, First: first, Measured: t.last, Times: make([]time.Time, end-first+1), Values: make([][]float64, len(t.values))}
	for i := range w.Times {
		number := first + int64(i)
		w.Times[i] = wall.Add(time.Duration(number)*t.step - now)
	}
	for s := range t.values {
		w.Values[s] = make([]float64, len(w.Times))
		for i := range w.Values[s] {
			number := first + int64(i)
			w.Values[s][i] = math.NaN()
			if number >= 0 && number <= t.last && number > t.last-t.steps {
				w.Values[s][i] = t.values[s][number%t.steps]
			}
		}
	}
	return w
}
