package enginebench

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
	type table struct {
		Title string
		Heads []filled
		Rows  [][]cell
	}
	tableOf := func(title string, columns []column) table {
		t := table{Title: title, Heads: fill(columns, r.Rows)}
		for i := range r.Rows {
			var cells []cell
			for _, f := range t.Heads {
				cells = append(cells, cell{f.cells[i], f.left})
			}
			t.Rows = append(t.Rows, cells)
		}
		return t
	}
	tables := []table{tableOf(ttftTitle, ttftColumns()), tableOf(detailTitle, detailColumns())}
	if r.generates() {
		tables = append([]table{tableOf(servingTitle, servingColumns())}, tables...)
	}
	return page.Execute(w, struct {
		*Report
		Lines    []string
		Warning  string
		Cards    []card
		Sections []section
		Tables   []table
	}{r, append(with.Lines(), r.circumstances()...), r.warning(), r.cards(), r.sections(), tables})
}

type cell struct {
	Text string
	Left bool
}

// Head and Left are for the template, which sees exported names only.
func (f filled) Head() string { return f.head }

// Left reports whether the column's text is aligned left.
func (f filled) Left() bool { return f.left }

// card is one of the most important figures.
type card struct{ Figure, About string }

func (r *Report) cards() (all []card) {
	if len(r.Rows) == 0 {
		return nil
	}
	if r.Workload == UCMTable {
		low := r.smallestShare()
		all = append(all, card{percent(low.IdealShare), fmt.Sprintf("of the ideal speed-up in the worst row: %s, %s tokens, %d at once", low.Model, thousands(low.InputTokens), low.Concurrent)})
		if low.UCM != nil {
			all = append(all, card{percent(low.UCM.IdealShare), "of the ideal speed-up in what UCM publishes for the same row"})
		}
		return all
	}
	for _, row := range r.Rows {
		possible := times(row.IdealSpeedup) + " that are possible"
		if row.bandwidthBound() {
			possible = times(ratio(row.FullMs, row.BoundMs)) + " that the bandwidth allows"
		}
		all = append(all,
			card{times(row.Speedup), fmt.Sprintf("%s: faster to the first token than computing everything, of %s", row.Name, possible)},
			card{percent(row.HitTokensRatio + row.MemoryTokensRatio), fmt.Sprintf("%s: of the tokens were not computed; an infinite cache: %s", row.Name, percent(row.InfiniteTokensRatio))})
	}
	return all
}
