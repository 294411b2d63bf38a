package hostsbench

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

//go:embed page.html
var pageText string

// WriteHTML writes the report as one self-contained page.
func (r *Report) WriteHTML(w io.Writer, with measure.Circumstances) error {
	page, err := template.New("page").Parse(pageText)
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	return page.Execute(w, struct {
		*Report
		Lines   []string
		Warning string
		Cards   []card
		Charts  []chart
		Tables  []table
	}{r, append(with.Lines(), r.circumstances()...), r.warning(), r.cards(), r.charts(), r.tables()})
}

// card is one of the most important figures.
type card struct{ Figure, About string }

func (r *Report) cards() (all []card) {
	for _, row := range r.Rows {
		if row.Name == rowCold {
			all = append(all, card{fmt.Sprintf("%.1fx", row.Speedup), fmt.Sprintf("%s: faster to the first token on a host that has just joined than computing everything; %.1fx are possible at this bandwidth; %s computed again", row.Order, row.FullMs/row.BoundMs, percent(row.RecomputedRatio))})
		}
	}
	if n := len(r.Reads); n > 1 {
		last := r.Reads[n-1]
		all = append(all, card{fmt.Sprintf("%.2fx", last.Scaling), fmt.Sprintf("as many bytes from own disks by %d hosts as by one; processors allow %.2fx", last.Hosts, last.Bound)})
	}
	if n := len(r.Rings); n > 0 {
		all = append(all, card{fmt.Sprintf("%.2f", r.Rings[n-1].Ratio), "of plain O_DIRECT reads through rings in shared mode"})
	}
	return all
}

// chart is the rows of one order as bars.
type chart struct {
	Title string
	Bars  []bar
}

// bar is a time to the first token, as a part of the longest in its chart.
type bar struct {
	Name, Class, Text string
	Percent           float64
}

func (r *Report) charts() (all []chart) {
	for _, row := range r.Rows {
		if len(all) == 0 || all[len(all)-1].Title != row.Order {
			all = append(all, chart{Title: row.Order})
			all[len(all)-1].add("computing everything", "full", row.FullMs)
		}
		c := &all[len(all)-1]
		c.add(row.Name, "measured", row.MeasuredMs)
		if row.Name != rowMemory {
			c.add(row.Name+": ideal", "ideal", row.IdealMs)
			if row.BoundMs > 1.05*row.IdealMs {
				c.add(row.Name+": bandwidth", "bound", row.BoundMs)
			}
		}
	}
	for i := range all {
		longest := 0.0
		for _, b := range all[i].Bars {
			longest = max(longest, b.Percent)
		}
		for j := range all[i].Bars {
			if longest > 0 {
				all[i].Bars[j].Percent *= 100 / longest
			}
		}
	}
	return all
}

// add adds a bar, whose Percent is milliseconds until the longest is known.
func (c *chart) add(name, class string, ms float64) {
	text := fmt.Sprintf("%.0f ms", ms)
	if ms >= 10_000 {
		text = fmt.Sprintf("%.1f s", ms/1000)
	}
	c.Bars = append(c.Bars, bar{name, class, text, ms})
}

// table is one of the report's tables.
type table struct {
	Title string
	Heads []cell
	Rows  [][]cell
}

type cell struct {
	Text string
	Left bool
}

func (r *Report) tables() (all []table) {
	add := func(title string, heads []string, rows [][]string) {
		if len(rows) == 0 {
			return
		}
		t := table{Title: title}
		for _, head := range heads {
			t.Heads = append(t.Heads, cell{head, left(head)})
		}
		for _, row := range rows {
			var cells []cell
			for i, text := range row {
				cells = append(cells, cell{text, left(heads[i])})
			}
			t.Rows = append(t.Rows, cells)
		}
		all = append(all, t)
	}
	add(rowsTitle, rowHeads, r.rowCells())
	add(tiersTitle, tierHeads, r.tierCells())
	add(readsTitle, readHeads, r.readCells())
	add(ringsTitle, ringHeads, r.ringCells())
	if r.Pages != nil {
		add(r.pagesTitle(), pageHeads, r.pageCells())
	}
	return all
}
