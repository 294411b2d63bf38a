package enginebench

import (
	"fmt"
	"slices"
)

// Classes of series, to which the page's style gives colours.
const (
	ofFull     = "full"
	ofUCM      = "ucm"
	ofMeasured = "measured"
	ofIdeal    = "ideal"
	ofBound    = "bound"
	ofHits     = "hits"
	ofRate     = "rate"
)

// section is a group of figures.
type section struct {
	Title, About string
	Legend       []legend
	Charts       []*chart
	Wide         bool
}

type legend struct{ Class, Name string }

func ttftLegend(rows []Row) []legend {
	l := []legend{{ofFull, "full compute"}}
	if slices.ContainsFunc(rows, func(r Row) bool { return r.UCM != nil }) {
		l = append(l, legend{ofUCM, "UCM, as published"})
	}
	return append(l, legend{ofMeasured, "measured"}, legend{ofIdeal, "ideal: loading takes no time"})
}

// sections returns the page's figures.
func (r *Report) sections() (all []section) {
	if len(r.Rows) == 0 {
		return nil
	}
	if r.Workload == UCMTable {
		return append(r.byLength(), r.shares()...)
	}
	all = append(all, r.passes(), r.distributions())
	if t := r.timelines(); len(t.Charts) > 0 {
		all = append(all, t)
	}
	return all
}

// models returns the models of the rows, in their order.
func (r *Report) models() (names []string) {
	for _, row := range r.Rows {
		if name := row.Model + " on " + row.Hardware; !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// of returns the rows of a model that meet a condition.
func (r *Report) of(model string, also func(Row) bool) (rows []Row) {
	for _, row := range r.Rows {
		if row.Model+" on "+row.Hardware == model && also(row) {
			rows = append(rows, row)
		}
	}
	return rows
}

func (r *Report) concurrencies() (all []int) {
	for _, row := range r.Rows {
		if !slices.Contains(all, row.Concurrent) {
			all = append(all, row.Concurrent)
		}
	}
	return all
}

// byLength draws the time to the first token against the prompt's length, a drawing
// for each concurrency.
func (r *Report) byLength() (all []section) {
	for _, model := range r.models() {
		s := section{Title: "Time to the first token: " + model, Legend: ttftLegend(r.Rows),
			About: "Mean of requests that come together, by the length of their prompts; both axes are logarithmic."}
		rows := r.of(model, func(Row) bool { return true })
		var lengths, values []float64
		for _, row := range rows {
			lengths = append(lengths, float64(row.InputTokens))
			values = append(values, row.FullMs, row.MeasuredMs, row.IdealMs)
			if row.UCM != nil {
				values = append(values, row.UCM.HitMs)
			}
		}
		low, high := around(values...)
		for _, n := range r.concurrencies() {
			s.Charts = append(s.Charts, lengthChart(n, r.of(model, func(row Row) bool { return row.Concurrent == n }), lengths, low, high))
		}
		all = append(all, s)
	}
	return all
}

func lengthChart(atOnce int, rows []Row, lengths []float64, low, high float64) *chart {
	c := newChart(fmt.Sprintf("%d at once", atOnce), 500, 300)
	if atOnce == 1 {
		c.Title = "one at a time"
	}
	c.XLabel = "tokens in the prompt"
	shortest, longest := slices.Min(lengths), slices.Max(lengths)
	x, y := c.x(shortest/1.12, longest*1.12, true), c.y(low, high, true)
	c.YTicks = logTicks(y, 10, duration)
	lines := []series{{class: ofFull, name: "full compute"}, {class: ofUCM, name: "UCM"}, {class: ofMeasured, name: "measured"}, {class: ofIdeal, name: "ideal"}}
	for _, row := range rows {
		at := float64(row.InputTokens)
		c.XTicks = append(c.XTicks, tick{x.at(at), thousands(row.InputTokens)})
		for i, v := range []float64{row.FullMs, 0, row.MeasuredMs, row.IdealMs} {
			if i == 1 && row.UCM != nil {
				v = row.UCM.HitMs
			}
			if v > 0 {
				lines[i].xs, lines[i].ys = append(lines[i].xs, at), append(lines[i].ys, v)
			}
		}
	}
	for _, s := range lines {
		c.draw(s, x, y, func(x, y float64) string { return fmt.Sprintf("%s at %s tokens", duration(y), thousands(int(x))) })
	}
	return c
}

// shares draws the share of the ideal speed-up that was reached, a bar for each row.
func (r *Report) shares() (all []section) {
	for _, model := range r.models() {
		rows := r.of(model, func(Row) bool { return true })
		s := section{Title: "Share of the ideal speed-up: " + model, Wide: true, Legend: []legend{{ofMeasured, "measured"}},
			About: "The speed-up over full compute, as a part of what it would be if loading took no time."}
		if len(ttftLegend(rows)) == 4 {
			s.Legend = append(s.Legend, legend{ofUCM, "UCM, as published"})
		}
		c := newChart("", 980, 300)
		c.Plot.H -= 12 // for the groups
		c.Plot.W -= 66 // for the target
		c.XLabel = "tokens in the prompt, by how many come at once"
		y := c.y(0, 1, false)
		for _, v := range []float64{0, 0.25, 0.5, 0.75, 1} {
			c.YTicks = append(c.YTicks, tick{y.at(v), fmt.Sprintf("%.0f %%", 100*v)})
		}
		c.Rule = &rule{y.at(targetShare), fmt.Sprintf("target %.0f %%", 100*targetShare)}
		each := c.Plot.W / float64(len(rows))
		first, group := 0, rows[0].Concurrent
		for i, row := range rows {
			left := c.Plot.X + float64(i)*each
			c.XTicks = append(c.XTicks, tick{seen(left + each/2), thousands(row.InputTokens)})
			width := min(each*0.36, 26)
			c.share(left+each/2-width, width, y, row.IdealShare, ofMeasured, "measured")
			if row.UCM != nil {
				c.share(left+each/2, width, y, row.UCM.IdealShare, ofUCM, "UCM")
			}
			if i+1 == len(rows) || rows[i+1].Concurrent != group {
				c.Groups = append(c.Groups, tick{seen(c.Plot.X + each*float64(first+i+1)/2), fmt.Sprintf("%d at once", group)})
				if i+1 < len(rows) {
					first, group = i+1, rows[i+1].Concurrent
				}
			}
		}
		s.Charts = []*chart{c}
		all = append(all, s)
	}
	return all
}

// share adds a bar of a percentage.
func (c *chart) share(left, width float64, y axis, v float64, class, name string) {
	top := y.at(min(v, 1))
	c.Bars = append(c.Bars, bar{rect{seen(left + 0.5), top, seen(width - 1), seen(c.Plot.Bottom() - top)}, class,
		fmt.Sprintf("%s: %s", name, percent(v)), fmt.Sprintf("%.0f", 100*v)})
}

// passes draws the mean time to the first token of each pass.
func (r *Report) passes() section {
	s := section{Title: "Time to the first token", About: "Mean of all requests, by pass.", Legend: ttftLegend(r.Rows), Wide: true}
	if r.Bandwidth > 0 {
		s.Legend = append(s.Legend, legend{ofBound, "ideal, but for the bandwidth"})
	}
	c := newChart("", 980, 280)
	var values []float64
	for _, row := range r.Rows {
		values = append(values, row.FullMs, row.MeasuredMs, row.IdealMs, row.BoundMs)
	}
	y := c.y(0, above(values...), false)
	c.YTicks = linearTicks(y, duration)
	each := c.Plot.W / float64(len(r.Rows))
	for i, row := range r.Rows {
		middle := seen(c.Plot.X + (float64(i)+0.5)*each)
		name := row.Name
		if row.Calculated {
			name += ", calculated"
		}
		c.XTicks = append(c.XTicks, tick{middle, fmt.Sprintf("%s: %s of the tokens hit", name, percent(row.HitTokensRatio+row.MemoryTokensRatio))})
		type column struct {
			class, name string
			v           float64
		}
		columns := []column{{ofFull, "full compute", row.FullMs}, {ofMeasured, "measured", row.MeasuredMs}, {ofIdeal, "ideal", row.IdealMs}}
		if r.Bandwidth > 0 {
			columns = append(columns, column{ofBound, "ideal, but for the bandwidth", row.BoundMs})
		}
		width := min(each*0.2, 90)
		for j, b := range columns {
			top := y.at(b.v)
			c.Bars = append(c.Bars, bar{rect{seen(middle + (float64(j)-float64(len(columns))/2)*width + 1), top, seen(width - 2), seen(c.Plot.Bottom() - top)}, b.class,
				b.name + ": " + duration(b.v), duration(b.v)})
		}
	}
	s.Charts = []*chart{c}
	return s
}

// distributions draws the share of requests that had their first token by each time.
func (r *Report) distributions() section {
	s := section{Title: "How the times are distributed", Legend: ttftLegend(nil),
		About: "The share of requests that had their first token within this time; the time axis is logarithmic."}
	for _, row := range r.Rows {
		d := row.Distribution
		if d == nil || len(d.MeasuredMs) == 0 {
			continue
		}
		c := newChart(row.Name, 500, 300)
		c.XLabel = "time to the first token"
		low, high := around(slices.Concat(d.FullMs, d.MeasuredMs, d.IdealMs)...)
		x, y := c.x(low, high, true), c.y(0, 1, false)
		c.XTicks = logTicks(x, 7, duration)
		for _, v := range []float64{0, 0.25, 0.5, 0.75, 1} {
			c.YTicks = append(c.YTicks, tick{y.at(v), fmt.Sprintf("%.0f %%", 100*v)})
		}
		for _, l := range []series{{class: ofFull, xs: d.FullMs}, {class: ofMeasured, xs: d.MeasuredMs}, {class: ofIdeal, xs: d.IdealMs}} {
			for i := range l.xs {
				l.ys = append(l.ys, float64(i+1)/float64(len(l.xs)))
			}
			c.draw(l, x, y, nil)
		}
		s.Charts = append(s.Charts, c)
	}
	return s
}

// timelines draws hits and bytes over time.
func (r *Report) timelines() section {
	s := section{Title: "Over time", About: "The hit ratio is by when the first tokens came. GB/s are those of the simulated engine, at full size.",
		Legend: []legend{{ofHits, "hit ratio, in tokens"}, {ofRate, "loaded, GB/s"}}}
	for _, row := range r.Rows {
		if len(row.Timeline) == 0 || row.Requests < 10 {
			continue
		}
		last := row.Timeline[len(row.Timeline)-1].Seconds
		hits, rate := series{class: ofHits, name: "hit ratio"}, series{class: ofRate, name: "loaded"}
		top := 0.0
		for _, m := range row.Timeline {
			if m.Requests > 0 {
				hits.xs, hits.ys = append(hits.xs, m.Seconds), append(hits.ys, m.HitTokensRatio)
			}
			rate.xs, rate.ys = append(rate.xs, m.Seconds), append(rate.ys, m.FullGBps)
			top = max(top, m.FullGBps)
		}
		c := newChart(row.Name+": hit ratio", 500, 260)
		c.XLabel = "seconds since the first request"
		x, y := c.x(0, last, false), c.y(0, 1, false)
		seconds := func(v float64) string { return fmt.Sprintf("%.4g", v) }
		c.XTicks = linearTicks(x, seconds)
		for _, v := range []float64{0, 0.25, 0.5, 0.75, 1} {
			c.YTicks = append(c.YTicks, tick{y.at(v), fmt.Sprintf("%.0f %%", 100*v)})
		}
		c.draw(hits, x, y, nil)
		g := newChart(row.Name+": loaded, GB/s", 500, 260)
		g.XLabel, g.XTicks = c.XLabel, c.XTicks
		rates := g.y(0, above(top), false)
		g.YTicks = linearTicks(rates, func(v float64) string { return fmt.Sprintf("%.3g", v) })
		g.draw(rate, x, rates, nil)
		s.Charts = append(s.Charts, c, g)
	}
	return s
}
