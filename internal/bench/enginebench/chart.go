package enginebench

import (
	"fmt"
	"math"
	"strings"
)

// chart is a drawing for the page's template, in the units of its view box, with y
// growing downwards.
type chart struct {
	Title          string
	XLabel         string
	Width, Height  float64
	Plot           rect
	XTicks, YTicks []tick
	Groups         []tick // second row of labels below the x axis
	Lines          []curve
	Bars           []bar
	Rule           *rule
}

type rect struct{ X, Y, W, H float64 }

// Right and Bottom return the far edges.
func (r rect) Right() float64  { return r.X + r.W }
func (r rect) Bottom() float64 { return r.Y + r.H }

// Middle returns the distance of its centre from the left.
func (r rect) Middle() float64 { return seen(r.X + r.W/2) }

type tick struct {
	At    float64
	Label string
}

// curve is the drawing of a series, which its class names.
type curve struct {
	Class, Path string
	Dots        []dot
}

type dot struct {
	X, Y float64
	Tip  string
}

type bar struct {
	rect
	Class, Tip, Label string
}

// rule is a horizontal line at a target.
type rule struct {
	Y     float64
	Label string
}

// newChart returns an empty chart with space for labels around the plot, also for half of
// one below its right end.
func newChart(title string, width, height float64) *chart {
	return &chart{Title: title, Width: width, Height: height, Plot: rect{58, 14, width - 58 - 26, height - 14 - 44}}
}

// LabelX returns where the label of the x axis is centred.
func (c *chart) LabelX() float64 { return c.Plot.Middle() }

// axis converts values to positions.
type axis struct {
	low, high float64
	log       bool
	from, to  float64 // places of low and high
}

func (a axis) at(v float64) float64 {
	share := (v - a.low) / (a.high - a.low)
	if a.log {
		share = math.Log(max(v, a.low)/a.low) / math.Log(a.high/a.low)
	}
	return seen(a.from + share*(a.to-a.from))
}

// seen rounds a position to what can be seen.
func seen(v float64) float64 { return math.Round(v*10) / 10 }

// x is an axis along the bottom, y one up the side.
func (c *chart) x(low, high float64, log bool) axis {
	return axis{low, high, log, c.Plot.X, c.Plot.Right()}
}

func (c *chart) y(low, high float64, log bool) axis {
	return axis{low, high, log, c.Plot.Bottom(), c.Plot.Y}
}

// series is values to draw.
type series struct {
	class, name string
	xs, ys      []float64
}

// draw adds a curve, with labelled dots if there are few.
func (c *chart) draw(s series, x, y axis, tip func(x, y float64) string) {
	if len(s.xs) == 0 {
		return
	}
	var path strings.Builder
	line := curve{Class: s.class}
	for i := range s.xs {
		px, py := x.at(s.xs[i]), y.at(s.ys[i])
		fmt.Fprintf(&path, "%c%g %g", "ML"[min(i, 1)], px, py)
		if tip != nil {
			line.Dots = append(line.Dots, dot{px, py, s.name + ": " + tip(s.xs[i], s.ys[i])})
		}
	}
	line.Path = path.String()
	c.Lines = append(c.Lines, line)
}

// linearTicks returns about five round numbers from 0 on.
func linearTicks(a axis, label func(float64) string) (ticks []tick) {
	step := math.Pow(10, math.Floor(math.Log10(a.high/5)))
	for _, times := range []float64{2, 2.5, 2} {
		if a.high/step > 6 {
			step *= times
		}
	}
	for v := a.low; v <= a.high*1.0001; v += step {
		ticks = append(ticks, tick{a.at(v), label(v)})
	}
	return ticks
}

// logTicks returns 1, 2 and 5 times powers of ten, or fewer if those do not fit.
func logTicks(a axis, most int, label func(float64) string) (ticks []tick) {
	for _, digits := range [][]float64{{1, 2, 5}, {1, 3}, {1}} {
		ticks = nil
		for power := math.Pow(10, math.Floor(math.Log10(a.low))); power <= a.high; power *= 10 {
			for _, digit := range digits {
				if v := digit * power; v >= a.low*0.999 && v <= a.high*1.001 {
					ticks = append(ticks, tick{a.at(v), label(v)})
				}
			}
		}
		if len(ticks) <= most {
			break
		}
	}
	return ticks
}

// around widens a range to the next ticks of a logarithmic axis.
func around(values ...float64) (low, high float64) {
	low, high = math.Inf(1), 0
	for _, v := range values {
		if v > 0 {
			low, high = min(low, v), max(high, v)
		}
	}
	if high == 0 {
		return 1, 10
	}
	snap := func(v float64, up bool) float64 {
		power := math.Pow(10, math.Floor(math.Log10(v)))
		best := power
		for _, digit := range []float64{1, 2, 5, 10} {
			d := digit * power
			switch {
			case up && d >= v*0.9999:
				return d
			case !up && d <= v*1.0001:
				best = d
			}
		}
		return best
	}
	low, high = snap(low, false), snap(high, true)
	if low == high {
		high *= 10
	}
	return low, high
}

// above returns a round number at which a linear axis from 0 may end.
func above(values ...float64) float64 {
	high := 0.0
	for _, v := range values {
		high = max(high, v)
	}
	if high == 0 {
		return 1
	}
	power := math.Pow(10, math.Floor(math.Log10(high)))
	for _, digit := range []float64{1, 1.5, 2, 3, 4, 5, 6, 8, 10} {
		if digit*power >= high {
			return digit * power
		}
	}
	return high
}

// duration formats milliseconds with a unit.
func duration(ms float64) string {
	switch {
	case ms == 0:
		return "0"
	case ms >= 1000:
		return fmt.Sprintf("%.3g s", ms/1000)
	}
	return fmt.Sprintf("%.3g ms", ms)
}
