package doctest

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// block is a fenced block to run.
type block struct {
	line   int // of its fence
	script string
	output string // what it prints; "" if the page does not show it
}

// page holds what a test runs of a file.
type page struct {
	tried    []block
	standIns []string
}

var standIns = regexp.MustCompile(`^<!-- stand-ins:((?: (?:python|command):[a-z0-9_]+)+) -->$`)

// parse reads a page of docs/engines, in which every block is of a known kind. An error
// names the line.
func parse(text string) (page, error) { return parseBlocks(text, false) }

// parseReadme reads the project's README, which also shows programs and output of others.
func parseReadme(text string) (page, error) { return parseBlocks(text, true) }

func parseBlocks(text string, others bool) (p page, err error) {
	var info string // words after the opening fence
	var body strings.Builder
	begin, shows := 0, false // shows: output may follow, because the last block is tried
	for i, line := range strings.Split(text, "\n") {
		number := i + 1
		switch {
		case begin == 0 && strings.HasPrefix(line, "```"):
			begin, info = number, strings.TrimPrefix(line, "```")
			body.Reset()
		case begin == 0:
			if m := standIns.FindStringSubmatch(line); m != nil {
				p.standIns = append(p.standIns, strings.Fields(m[1])...)
			} else if strings.HasPrefix(line, "<!--") {
				return p, fmt.Errorf("line %d: %s is not understood", number, line)
			}
		case line != "```":
			body.WriteString(line + "\n")
		default:
			switch {
			case info == "sh tried":
				p.tried = append(p.tried, block{line: begin, script: body.String()})
			case info == "text output" && !shows:
				return p, fmt.Errorf("line %d: output must follow a block that is tried", begin)
			case info == "text output":
				p.tried[len(p.tried)-1].output = body.String()
			case info != "sh untried" && !others:
				return p, fmt.Errorf("line %d: a block must be sh tried, sh untried or text output, not %q", begin, info)
			}
			begin, shows = 0, info == "sh tried"
		}
	}
	switch {
	case begin != 0:
		return p, fmt.Errorf("line %d: the block does not end", begin)
	case len(p.tried) == 0:
		return p, fmt.Errorf("no block is tried")
	}
	return p, nil
}

// matches reports whether the output that a page shows matches what was printed.
func matches(shown, printed string) bool {
	var pattern strings.Builder
	for line := range strings.Lines(shown) {
		if line == "...\n" {
			pattern.WriteString(`(?:.*\n)*?`)
			continue
		}
		pattern.WriteString(strings.ReplaceAll(regexp.QuoteMeta(strings.TrimRight(line, " \n")), `\.\.\.`, `.*`) + ` *\n`)
	}
	return regexp.MustCompile(`^` + pattern.String() + `$`).MatchString(printed)
}

func TestParse(t *testing.T) {
	text := strings.Join([]string{
		"<!-- stand-ins: python:vllm command:ninja -->",
		"```sh tried", "echo a", "```", "prints", "```text output", "a", "```",
		"```sh untried", "vllm serve", "```",
		"```sh tried", "echo b", "```",
	}, "\n")
	p, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	if want := []block{{2, "echo a\n", "a\n"}, {12, "echo b\n", ""}}; !slices.Equal(p.tried, want) {
		t.Errorf("blocks %+v, want %+v", p.tried, want)
	}
	if want := []string{"python:vllm", "command:ninja"}; !slices.Equal(p.standIns, want) {
		t.Errorf("stand-ins %q, want %q", p.standIns, want)
	}
	for _, text := range []string{
		"",
		"```sh untried\nx\n```",
		"```sh\nx\n```",
		"```\nx\n```",
		"```sh tried\nx",
		"```text output\nx\n```\n```sh tried\nx\n```",
		"```sh tried\nx\n```\n```sh untried\ny\n```\n```text output\nx\n```",
		"<!-- stand-in: python:x -->\n```sh tried\nx\n```",
	} {
		if p, err := parse(text); err == nil {
			t.Errorf("%q was read as %+v", text, p)
		}
	}
	if p, err := parseReadme("```go\nx\n```\n```sh tried\ny\n```"); err != nil || len(p.tried) != 1 {
		t.Errorf("a README with a program was read as %+v, %v", p, err)
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		shown, printed string
		want           bool
	}{
		{"a\nb\n", "a\nb\n", true},
		{"a\n", "a  \n", true},
		{"a\n", "a\nb\n", false},
		{"b\n", "a\nb\n", false},
		{"a\n...\nd\n", "a\nb\nc\nd\n", true},
		{"...\nd\n", "d\n", true},
		{"a\n...\nd\n", "a\nb\nc\n", false},
		{"pid ..., since ...\n", "pid 7, since today\n", true},
		{"pid ...\n", "pid 7\nmore\n", false},
		{"a.c\n", "abc\n", false},
	} {
		if got := matches(c.shown, c.printed); got != c.want {
			t.Errorf("%q shows %q: %v", c.shown, c.printed, got)
		}
	}
}
