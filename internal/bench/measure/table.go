package measure

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Width is the number of columns of a terminal that every report fits.
const Width = 100

// fewRuns is the number of runs below which a median says little.
const fewRuns = 3

// FewRuns returns a warning if the medians of a report are of so few runs that they say little,
// and otherwise "".
func FewRuns(runs int) string {
	switch {
	case runs >= fewRuns:
		return ""
	case runs <= 1:
		return "Warning: everything was measured once. Measure again before you trust a small difference."
	}
	return fmt.Sprintf("Warning: medians of %d runs say little. Measure again before you trust a small difference, with --runs %d or more.", runs, fewRuns)
}

// Column is a column of a Table.
type Column struct {
	Head string
	Left bool // aligned left, as words are
}

// Table is a table of texts.
type Table struct {
	Columns []Column
	Keys    int // how many columns at the left say what a row is
	Rows    [][]string
}

// Write writes the table in lines of at most Width. Columns that do not fit follow below, beside
// the keys again.
func (t Table) Write(b *strings.Builder) {
	const gap = 2
	widths := make([]int, len(t.Columns))
	for i, c := range t.Columns {
		widths[i] = utf8.RuneCountInString(c.Head)
		for _, row := range t.Rows {
			widths[i] = max(widths[i], utf8.RuneCountInString(row[i]))
		}
	}
	keys := 0
	for _, width := range widths[:t.Keys] {
		keys += width + gap
	}
	for from := t.Keys; from == t.Keys || from < len(t.Columns); {
		if from > t.Keys {
			b.WriteByte('\n')
		}
		to, used := from, keys
		for to < len(t.Columns) && (to == from || used+widths[to] <= Width) {
			used += widths[to] + gap
			to++
		}
		t.write(b, widths, from, to)
		from = max(to, t.Keys+1)
	}
}

// write writes the keys and the columns in [from, to).
func (t Table) write(b *strings.Builder, widths []int, from, to int) {
	line := func(cell func(column int) string) {
		var l strings.Builder
		for i, c := range t.Columns {
			if i >= t.Keys && (i < from || i >= to) {
				continue
			}
			width := widths[i]
			if c.Left {
				width = -width
			}
			fmt.Fprintf(&l, "%*s  ", width, cell(i))
		}
		b.WriteString(strings.TrimRight(l.String(), " ") + "\n")
	}
	line(func(i int) string { return t.Columns[i].Head })
	for _, row := range t.Rows {
		line(func(i int) string { return row[i] })
	}
}

// Wrap breaks the lines of a text at spaces, so that they have at most Width columns. What
// follows of a line is indented. A longer word, such as a path, stays whole.
func Wrap(text string) string {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, ended := strings.CutSuffix(line, "\n")
		for utf8.RuneCountInString(line) > Width {
			at := breakAt(line)
			if at < 0 {
				break
			}
			b.WriteString(strings.TrimRight(line[:at], " ") + "\n")
			line = "  " + strings.TrimLeft(line[at:], " ")
		}
		b.WriteString(line)
		if ended {
			b.WriteByte('\n')
		}
	}
	return b.String()
}

// breakAt returns the last space within Width, or the first one after it, or -1.
func breakAt(line string) int {
	start := len(line) - len(strings.TrimLeft(line, " "))
	last, columns := -1, 0
	for i, r := range line {
		if r == ' ' && i > start {
			if columns > Width && last >= 0 {
				break
			}
			last = i
			if columns > Width {
				break
			}
		}
		columns++
	}
	return last
}
