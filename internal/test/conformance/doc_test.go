package conformance

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// TestCompatibilityTable checks that the tests that docs/compatibility.md names exist,
// and that it names every number.
func TestCompatibilityTable(t *testing.T) {
	text, err := os.ReadFile(repository + "/docs/compatibility.md")
	must(t, err)
	for kind, checks := range map[string]map[int]check{"Case": cases, "R": requirements} {
		named := map[int]bool{}
		for _, m := range regexp.MustCompile("`Test"+kind+"/(\\d+)`(?: to `Test"+kind+"/(\\d+)`)?").FindAllStringSubmatch(string(text), -1) {
			first, _ := strconv.Atoi(m[1])
			last, err := strconv.Atoi(m[2])
			if err != nil {
				last = first
			}
			for n := first; n <= last; n++ {
				named[n] = true
				if len(checks[n].ways) == 0 {
					t.Errorf("%s has no test", m[0])
				}
			}
		}
		for n := range checks {
			if !named[n] {
				t.Errorf("Test%s/%d is not in the table", kind, n)
			}
		}
	}
	existingTests(t, "docs/compatibility.md", string(text))
}

// TestCoverageTable checks that each row of docs/coverage.md that says that something works
// names what shows it, and that the tests exist.
func TestCoverageTable(t *testing.T) {
	const page = "docs/coverage.md"
	text, err := os.ReadFile(repository + "/" + page)
	must(t, err)
	existingTests(t, page, string(text))
	rows := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.ReplaceAll(line, `\|`, ""), "|")
		if len(cells) != 5 || strings.HasPrefix(line, "|---") || strings.HasPrefix(line, "| item |") {
			continue
		}
		rows++
		verdict, shown := strings.TrimSpace(cells[2]), strings.TrimSpace(cells[3])
		switch {
		case !regexp.MustCompile(`^(works|better|in part|not here)\b`).MatchString(verdict):
			t.Errorf("%s: %q begins with none of works, better, in part and not here", page, verdict)
		case !strings.Contains(shown, "`") && !strings.HasPrefix(verdict, "not here"):
			t.Errorf("%s: nothing shows %q", page, strings.TrimSpace(cells[1]))
		}
	}
	if rows < 50 {
		t.Errorf("%s: %d rows were understood", page, rows)
	}
}

// existingTests checks that the tests that a page names exist.
func existingTests(t *testing.T, page, text string) {
	t.Helper()
	for _, m := range regexp.MustCompile("`((?:Test|Example|Fuzz)[A-Z][A-Za-z0-9]+)`").FindAllStringSubmatch(text, -1) {
		if err := exec.Command("grep", "-rq", "--include=*_test.go", "func "+m[1]+"(", repository).Run(); err != nil {
			t.Errorf("%s names %s, which does not exist", page, m[1])
		}
	}
}
