package doctor

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// Report is what a doctor says.
type Report struct {
	Status Status `json:"status"` // the worst of the findings
	Mount  string `json:"mount,omitempty"`
	Data   string `json:"data,omitempty"`
	Engine string `json:"engine,omitempty"`
	// Interrupted says that there was no time for the rest.
	Interrupted bool      `json:"interrupted,omitempty"`
	Findings    []Finding `json:"findings"`
}

func (r *Report) add(findings ...Finding) {
	for _, f := range findings {
		r.Findings = append(r.Findings, f)
		r.Status = max(r.Status, f.Status)
	}
}

// ExitStatus is 0 for fine, 1 for warnings, 2 for what will not work.
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

// WriteTable writes the report for people, in lines of at most that many columns
// unless a word is longer. A fix is one line, however long: it is to be pasted.
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

// mark is a status padded to markWidth, which colours do not count in.
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

// wrap breaks text between words so that it fits behind indent. What fits is left
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
		return "Interrupted; until then: " + counts + "."
	case r.Status == Failure:
		return "This will not work: " + counts + "."
	case r.Status == Warning:
		return "This works, with reservations: " + counts + "."
	}
	return "Nothing is wrong that was looked at: " + counts + "."
}

func plural(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
