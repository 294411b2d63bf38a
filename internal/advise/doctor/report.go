package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Report holds what the doctor found.
type Report struct {
	Status Status `json:"status"` // the worst of the findings
	Mount  string `json:"mount,omitempty"`
	Data   string `json:"data,omitempty"`
	Engine string `json:"engine,omitempty"`
	// Interrupted reports that checks are missing because the context ended.
	Interrupted bool      `json:"interrupted,omitempty"`
	Findings    []Finding `json:"findings"`
}

func (r *Report) add(findings ...Finding) {
	for _, f := range findings {
		r.Findings = append(r.Findings, f)
		r.Status = max(r.Status, f.Status)
	}
}

// ExitStatus returns 0 if all is well, 1 for warnings and 2 for failures.
func (r *Report) ExitStatus() int {
	switch r.Status {
	case Failure:
		return 2
	case Warning:
		return 1
	}
	return 0
}

const markWidth = len("FAILURE")

// WriteTable writes the report as text, in lines of at most the given number of columns
// unless a word is longer. A fix stays on one line, however long, so that it can be
// pasted.
func (r *Report) WriteTable(w io.Writer, columns int, colour bool) error {
	var b strings.Builder
	idWidth := 0
	for _, f := range r.Findings {
		idWidth = max(idWidth, len(f.ID))
	}
	below := strings.Repeat(" ", markWidth+2)
	indent := below + strings.Repeat(" ", idWidth+2)
	for _, f := range r.Findings {
		head := fmt.Sprintf("%s  %-*s  ", mark(f.Status, colour), idWidth, f.ID)
		b.WriteString(head + wrap(f.Found, indent, columns) + "\n")
		if f.Needed != "" {
			b.WriteString(below + "needed: " + wrap(f.Needed, below+"        ", columns) + "\n")
		}
		if f.Fix != "" {
			b.WriteString(below + "fix:    " + f.Fix + "\n")
		}
	}
	b.WriteString("\n" + r.summary() + "\n")
	_, err := io.WriteString(w, b.String())
	return err
}

// mark returns a status padded to markWidth; escape sequences of colours do not count.
func mark(s Status, colour bool) string {
	text := s.String()
	if s >= Warning {
		text = strings.ToUpper(text)
	}
	text = fmt.Sprintf("%-*s", markWidth, text)
	if !colour {
		return text
	}
	return [...]string{"\x1b[32m", "\x1b[36m", "\x1b[33m", "\x1b[1;31m"}[s] + text + "\x1b[0m"
}

// wrap breaks text between words so that it fits behind indent. Text that fits stays
// as it is.
func wrap(text, indent string, columns int) string {
	if len(indent)+utf8.RuneCountInString(text) <= columns {
		return text
	}
	var b strings.Builder
	column := len(indent)
	for i, word := range strings.Fields(text) {
		n := utf8.RuneCountInString(word)
		switch {
		case i == 0:
		case column+1+n > columns:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += n
	}
	return b.String()
}

func (r *Report) summary() string {
	var n [len(statusNames)]int
	for _, f := range r.Findings {
		n[f.Status]++
	}
	counts := fmt.Sprintf("%s, %s, %s", plural(n[Failure], "failure"), plural(n[Warning], "warning"), plural(n[Note], "note"))
	switch {
	case r.Interrupted:
		return "Interrupted. Found so far: " + counts + "."
	case r.Status == Failure:
		return "This will not work: " + counts + "."
	case r.Status == Warning:
		return "This works, with warnings: " + counts + "."
	}
	return "No problems found: " + counts + "."
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
