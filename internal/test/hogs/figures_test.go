package hogs

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// figures are what a client's calls have met, in a part of the run.
type figures struct {
	Nanos  []time.Duration // how long each call took
	Wrong  int             // calls with a wrong byte
	Errors []string        // of those calls and all others that failed
}

func (f *figures) add(took time.Duration, err error) {
	f.Nanos = append(f.Nanos, took)
	if err == nil {
		return
	}
	var wrong wrongByte
	if errors.As(err, &wrong) {
		f.Wrong++
	}
	f.Errors = append(f.Errors, err.Error())
}

func (f *figures) merge(g figures) {
	f.Nanos = append(f.Nanos, g.Nanos...)
	f.Wrong += g.Wrong
	f.Errors = append(f.Errors, g.Errors...)
}

func (f *figures) longest() time.Duration {
	if len(f.Nanos) == 0 {
		return 0
	}
	return slices.Max(f.Nanos)
}

// String is a part of a row of the report: calls, p50, p99, longest.
func (f *figures) String() string {
	n := len(f.Nanos)
	if n == 0 {
		return fmt.Sprintf("%6d %9s %9s %9s", 0, "-", "-", "-")
	}
	slices.Sort(f.Nanos)
	return fmt.Sprintf("%6d %9s %9s %9s", n, short(f.Nanos[n/2]), short(f.Nanos[n*99/100]), short(f.Nanos[n-1]))
}

// short spells a duration with three digits.
func short(d time.Duration) string {
	switch {
	case d < time.Millisecond:
		return fmt.Sprintf("%d us", d.Microseconds())
	case d < time.Second:
		return fmt.Sprintf("%.3g ms", d.Seconds()*1e3)
	default:
		return fmt.Sprintf("%.3g s", d.Seconds())
	}
}
