package measure

import (
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTableFits(t *testing.T) {
	table := Table{Columns: []Column{{"case", true}}, Keys: 1, Rows: [][]string{{"read µ"}, {"write"}}}
	for range 12 {
		table.Columns = append(table.Columns, Column{Head: "0123456789"})
		for i := range table.Rows {
			table.Rows[i] = append(table.Rows[i], "1")
		}
	}
	var b strings.Builder
	table.Write(&b)
	lines := strings.Split(b.String(), "\n")
	for _, line := range lines {
		if utf8.RuneCountInString(line) > Width {
			t.Errorf("%d columns: %s", utf8.RuneCountInString(line), line)
		}
	}
	if got := strings.Count(b.String(), "0123456789"); got != 12 || strings.Count(b.String(), "read µ") != 2 {
		t.Errorf("%d of 12 columns:\n%s", got, b.String())
	}
	b.Reset()
	Table{Columns: []Column{{"a", true}, {"b", false}}, Keys: 1, Rows: [][]string{{"x", "10"}}}.Write(&b)
	if b.String() != "a   b\nx  10\n" {
		t.Errorf("%q", b.String())
	}
	b.Reset()
	Table{Columns: []Column{{"only", true}}, Keys: 1, Rows: [][]string{{"x"}}}.Write(&b)
	if b.String() != "only\nx\n" {
		t.Errorf("%q", b.String())
	}
}

func TestWrap(t *testing.T) {
	long := strings.Repeat("word ", 50)
	for _, line := range strings.Split(Wrap(long+"\nshort\n"), "\n") {
		if len(line) > Width || strings.HasSuffix(line, " ") && strings.TrimSpace(line) != "" && len(line) == Width {
			t.Errorf("%q", line)
		}
	}
	path := "/" + strings.Repeat("p", 120)
	for text, want := range map[string]string{
		"":                      "",
		"a\n\n":                 "a\n\n",
		path + "\n":             path + "\n",
		"on " + path + " and b": "on\n  " + path + "\n  and b",
		"a":                     "a",
	} {
		if got := Wrap(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestFewRuns(t *testing.T) {
	for runs, want := range map[int]bool{0: true, 1: true, 2: true, 3: false, 5: false} {
		if got := FewRuns(runs) != ""; got != want {
			t.Errorf("%d runs: %v", runs, FewRuns(runs))
		}
	}
}
