package enginebench

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/kv3fs/kv3fs/internal/bench/measure"
)

// targetShare is the target for every row of ucm-table. It decides nothing, because the
// result also depends on the machine.
const targetShare = 0.95

// What the tables have.
const (
	servingTitle = "as clients see it: means and percentiles in ms; hits in tokens; an infinite cache would have what any request before had"
	ttftTitle    = "time to the first token, ms: median and mean; the rest compares means; hits in tokens"
	detailTitle  = "where time goes: medians in ms, of a request; stall is how long the GPU waited for bytes, on average"
)

// WriteTable writes the report as text.
func (r *Report) WriteTable(w io.Writer) error {
	var b strings.Builder
	for _, line := range r.circumstances() {
		b.WriteString(line + "\n")
	}
	b.WriteString("\n")
	for _, row := range r.Rows {
		if r.Workload == RandomTwice {
			r.writeServing(&b, row)
		}
	}
	if r.generates() {
		b.WriteString(servingTitle + "\n")
		writeColumns(&b, servingColumns(), r.Rows)
	}
	if len(r.Rows) > 0 {
		b.WriteString(ttftTitle + "\n")
		writeColumns(&b, ttftColumns(), r.Rows)
		b.WriteString(detailTitle + "\n")
		writeColumns(&b, detailColumns(), r.Rows)
	}
	if slices.ContainsFunc(r.Rows, Row.bandwidthBound) {
		b.WriteString("bound: the ideal, if loading takes the time that the simulated bandwidth and latency make it take\n")
	}
	for _, row := range r.Rows {
		if row.Calculated {
			fmt.Fprintf(&b, "%s: calculated, for the requests of the next row\n", row.Name)
		}
	}
	if r.Workload == UCMTable && len(r.Rows) > 0 {
		low := r.smallestShare()
		fmt.Fprintf(&b, "smallest share of the ideal: %s, of %s, %s tokens, %d at once; target, for information: at least %s\n",
			percent(low.IdealShare), low.Model, thousands(low.InputTokens), low.Concurrent, percent(targetShare))
	}
	if warning := r.warning(); warning != "" {
		b.WriteString(warning + "\n")
	}
	if r.WrongBytes > 0 {
		fmt.Fprintf(&b, "%d WRONG BYTES were loaded; the run ended there\n", r.WrongBytes)
	}
	if r.Interrupted {
		b.WriteString("interrupted: what was not complete is missing\n")
	}
	_, err := io.WriteString(w, measure.Wrap(b.String()))
	return err
}

// warning says that few runs were measured, or is "".
func (r *Report) warning() string {
	if len(r.Rows) == 0 {
		return ""
	}
	return measure.FewRuns(r.Runs)
}

// generates reports whether requests generate more than their first token.
func (r *Report) generates() bool {
	return slices.ContainsFunc(r.Rows, func(row Row) bool { return row.Serving != nil && row.Serving.OutputTokens > int64(row.Requests) })
}

// writeServing writes a row as the benchmarks of engines do.
func (r *Report) writeServing(b *strings.Builder, row Row) {
	for _, line := range row.Serving.lines(row.Name) {
		b.WriteString(line + "\n")
	}
	b.WriteString(row.blocksHit() + "\n")
	if row.PublishedMs > 0 {
		fmt.Fprintf(b, "UCM publishes a mean TTFT of %.2f ms for this run\n", row.PublishedMs)
	}
	b.WriteString("\n")
}

// blocksHit says how many blocks were loaded: of each request, if that is a whole number.
func (r Row) blocksHit() string {
	if n := r.Requests; n > 0 && r.HitBlocks%n == 0 && r.Blocks%n == 0 {
		return fmt.Sprintf("blocks hit: %d of %d in each request", r.HitBlocks/n, r.Blocks/n)
	}
	return fmt.Sprintf("blocks hit: %d of %d in all requests", r.HitBlocks, r.Blocks)
}

func (r *Report) smallestShare() Row {
	return slices.MinFunc(r.Rows, func(a, b Row) int { return cmp.Compare(a.IdealShare, b.IdealShare) })
}

// circumstances returns what the figures depend on.
func (r *Report) circumstances() []string {
	what := r.Workload
	if r.Trace != "" {
		what += " " + r.Trace
		if r.Speed > 0 {
			what += fmt.Sprintf(", at %.3g times its pace", r.Speed)
		} else {
			what += ", as fast as possible"
		}
	}
	chain := fmt.Sprintf("%s through %s", what, r.Store)
	if r.Storage != "" {
		chain += ", on " + r.Storage
	}
	simulated := "a store at its own speed"
	if r.Bandwidth > 0 {
		simulated = fmt.Sprintf("a simulated store of %s/s", measure.SizeText(int64(r.Bandwidth)))
	}
	if r.LatencyMs > 0 {
		simulated += fmt.Sprintf(" and %.3g ms", r.LatencyMs)
	}
	how := "compute overlaps the load, layer by layer"
	if r.Load == LoadWhole {
		how = "compute begins when all is loaded"
	}
	scale := fmt.Sprintf("blocks of %d tokens at 1/%d of their bytes", r.BlockTokens, r.Scale)
	if r.ScaleChosen {
		scale += fmt.Sprintf(", chosen for a machine that copies %.1f GB/s", r.CopyGBps)
	}
	lines := []string{chain, simulated + "; " + how, scale, r.engine()}
	if r.TimeScale > 1 {
		lines = append(lines, fmt.Sprintf("the engine's time runs %.3g times faster than the wall clock", r.TimeScale))
	}
	machine := fmt.Sprintf("seed %d; %d CPUs", r.Seed, r.CPUs)
	if r.Runs > 0 {
		machine += fmt.Sprintf("; medians of runs, %d for each row", r.Runs)
	}
	return append(lines, machine)
}

// engine returns how the simulated engine is set up.
func (r *Report) engine() string {
	parts := []string{"a forward pass computes one whole prompt"}
	if r.ChunkTokens > 0 {
		parts[0] = fmt.Sprintf("a forward pass computes up to %d tokens", r.ChunkTokens)
	}
	if r.MFU > 0 {
		parts = append(parts, fmt.Sprintf("MFU %.2f", r.MFU))
	}
	memory := "no prefix cache of the engine's own"
	if r.EngineMemory > 0 {
		memory = fmt.Sprintf("a prefix cache of %s in GPU memory", measure.SizeText(r.EngineMemory))
	}
	parts = append(parts, memory)
	switch {
	case r.TraceOutput:
		parts = append(parts, "as many output tokens as the trace says")
	case r.OutputTokens > 1:
		parts = append(parts, fmt.Sprintf("%d output tokens for each prompt", r.OutputTokens))
	}
	if r.Order != "" {
		parts = append(parts, "queries "+r.Order)
	}
	return strings.Join(parts, "; ")
}

// column is a column of a table: its heads, and its value in a row.
type column struct {
	head string
	left bool
	cell func(Row) string
}

// what names a row.
func what() []column {
	return []column{
		{"model", true, func(r Row) string { return r.Model + " " + r.Hardware }},
		{"pass", true, func(r Row) string { return r.Name }},
		{"tokens", false, func(r Row) string {
			if r.InputTokens == 0 {
				return "any"
			}
			return thousands(r.InputTokens)
		}},
		{"at once", false, func(r Row) string {
			if r.Concurrent == 0 {
				return "any"
			}
			return fmt.Sprint(r.Concurrent)
		}},
		{"hit", false, func(r Row) string { return percent(r.HitTokensRatio) }},
		{"in memory", false, func(r Row) string {
			if r.MemoryBlocks == 0 {
				return ""
			}
			return percent(r.MemoryTokensRatio)
		}},
		{"infinite", false, func(r Row) string { return percent(r.InfiniteTokensRatio) }},
	}
}

// servingColumns are those of workloads that also decode.
func servingColumns() []column {
	latency := func(name string, of func(*Serving) float64) column {
		return column{name, false, func(r Row) string { return ms(of(r.Serving)) }}
	}
	rate := func(name string, of func(*Serving) float64) column {
		return column{name, false, func(r Row) string { return fmt.Sprintf("%.2f", of(r.Serving)) }}
	}
	return append(what()[1:],
		latency("TTFT p50", func(s *Serving) float64 { return s.TTFT.Median }), latency("mean", func(s *Serving) float64 { return s.TTFT.Mean }),
		latency("p90", func(s *Serving) float64 { return s.TTFT.P90 }), latency("p99", func(s *Serving) float64 { return s.TTFT.P99 }),
		latency("TPOT", func(s *Serving) float64 { return s.TPOT.Mean }), latency("ITL p99", func(s *Serving) float64 { return s.ITL.P99 }),
		latency("E2EL", func(s *Serving) float64 { return s.E2EL.Mean }),
		rate("req/s", func(s *Serving) float64 { return s.RequestsPerSecond }), rate("out tok/s", func(s *Serving) float64 { return s.OutputTokensPerSecond }),
	)
}

func ttftColumns() []column {
	return append(what(),
		column{"full", false, func(r Row) string { return ms(r.FullMs) }},
		column{"p50", false, func(r Row) string { return ms(r.P50Ms) }},
		column{"mean", false, func(r Row) string { return ms(r.MeasuredMs) }},
		column{"ideal", false, func(r Row) string { return ms(r.IdealMs) }},
		column{"bound", false, func(r Row) string { return ifBound(r, ms(r.BoundMs)) }},
		column{"p99", false, func(r Row) string { return ms(r.P99Ms) }},
		column{"speed-up", false, func(r Row) string { return times(r.Speedup) }},
		column{"ideal", false, func(r Row) string { return times(r.IdealSpeedup) }},
		column{"of ideal", false, func(r Row) string { return percent(r.IdealShare) }},
		column{"of bound", false, func(r Row) string { return ifBound(r, percent(r.BoundShare)) }},
		column{"UCM ms", false, func(r Row) string { return ifPublished(r, func(p Published) string { return ms(p.HitMs) }) }},
		column{"UCM", false, func(r Row) string { return ifPublished(r, func(p Published) string { return times(p.Speedup) }) }},
		column{"of ideal", false, func(r Row) string { return ifPublished(r, func(p Published) string { return percent(p.IdealShare) }) }},
	)
}

func detailColumns() []column {
	return append(what()[:4],
		column{"hash", false, func(r Row) string { return ms(r.HashMs) }},
		column{"lookup", false, func(r Row) string { return ms(r.LookupMs) }},
		column{"p99", false, func(r Row) string { return ms(r.LookupP99Ms) }},
		column{"first layer", false, func(r Row) string { return ms(r.FirstLayerMs) }},
		column{"stall", false, func(r Row) string { return ms(r.StallMs) }},
		column{"loaded", false, func(r Row) string { return measure.SizeText(r.LoadedBytes) }},
		column{"GB/s", false, func(r Row) string { return fmt.Sprintf("%.2f", r.LoadGBps) }},
		column{"GB/s at full size", false, func(r Row) string { return fmt.Sprintf("%.1f", r.FullGBps) }},
		column{"save", false, func(r Row) string { return ms(r.SaveMs) }},
		column{"saved", false, func(r Row) string { return measure.SizeText(r.SavedBytes) }},
		column{"lost blocks", false, func(r Row) string { return fmt.Sprint(r.LostBlocks) }},
		column{"failed saves", false, func(r Row) string { return fmt.Sprint(r.FailedSaves) }},
	)
}

// filled is a column with its cells.
type filled struct {
	column
	cells []string
}

// fill makes the cells and omits columns that are empty in every row.
func fill(columns []column, rows []Row) (all []filled) {
	for _, c := range columns {
		f := filled{column: c}
		empty := true
		for _, r := range rows {
			cell := c.cell(r)
			f.cells = append(f.cells, cell)
			empty = empty && cell == ""
		}
		if !empty {
			all = append(all, f)
		}
	}
	return all
}

func writeColumns(b *strings.Builder, columns []column, rows []Row) {
	all := fill(columns, rows)
	t := measure.Table{Rows: make([][]string, len(rows))}
	for _, f := range all {
		t.Columns = append(t.Columns, measure.Column{Head: f.head, Left: f.left})
		if f.left || f.head == "tokens" || f.head == "at once" {
			t.Keys = len(t.Columns)
		}
		for i, cell := range f.cells {
			t.Rows[i] = append(t.Rows[i], cell)
		}
	}
	t.Write(b)
	b.WriteString("\n")
}

func ifBound(r Row, text string) string {
	if !r.bandwidthBound() {
		return ""
	}
	return text
}

func ifPublished(r Row, text func(Published) string) string {
	if r.UCM == nil {
		return ""
	}
	return text(*r.UCM)
}

// ms formats milliseconds with three significant digits.
func ms(v float64) string {
	switch {
	case v >= 100:
		return fmt.Sprintf("%.0f", v)
	case v >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.2f", v)
}

func times(v float64) string   { return fmt.Sprintf("%.2fx", v) }
func percent(v float64) string { return fmt.Sprintf("%.1f%%", 100*v) }

// thousands formats 4000 as 4K, and 20128 as it is.
func thousands(n int) string {
	if n >= 1000 && n%1000 == 0 {
		return fmt.Sprintf("%dK", n/1000)
	}
	return fmt.Sprint(n)
}
