package version

import (
	"os"
	"regexp"
	"testing"
)

// Scripts and packagers read the file at the root of the repository.
func TestRootFileMatches(t *testing.T) {
	root, err := os.ReadFile("../../VERSION")
	if err != nil || string(root) != file {
		t.Errorf("VERSION at the root has %q (%v), the embedded file has %q", root, err, file)
	}
	if !regexp.MustCompile(`^\d+\.\d+\.\d+(-[0-9a-z.]+)?$`).MatchString(Current()) {
		t.Errorf("%q is not a semantic version", Current())
	}
}
