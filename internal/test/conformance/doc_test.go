package conformance

import (
	"os"
	"os/exec"
	"regexp"
	"strconv"
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
	for _, m := range regexp.MustCompile("`(Test[A-Z][A-Za-z]+)`").FindAllStringSubmatch(string(text), -1) {
		if err := exec.Command("grep", "-rq", "--include=*_test.go", "func "+m[1]+"(", repository+"/internal").Run(); err != nil {
			t.Errorf("docs/compatibility.md names %s, which does not exist", m[1])
		}
	}
}
